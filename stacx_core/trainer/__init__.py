"""The trainer: role workers, the loop, syncs and checkpoints."""
