"""Megatron's distributed checkpoints, which any layout of processes can take up."""
