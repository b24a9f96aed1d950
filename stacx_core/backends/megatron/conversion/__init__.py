"""Weights of Hugging Face checkpoints to and from any layout of processes, a weight at a time."""
