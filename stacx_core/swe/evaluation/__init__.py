"""Evaluating agents: episodes on disk, what they say about pass@k, and showing them to people."""
