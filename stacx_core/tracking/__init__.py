"""Tracking: metrics.jsonl, progress in the terminal, and Weights & Biases."""
