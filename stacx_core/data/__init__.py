"""Samples, the training batch, packing, and where prompts come from."""
