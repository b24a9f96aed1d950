"""Flow-matching post-training of diffusion transformers for Stacx."""
