"""Flow-matching post-training for Stacx; `stacx_plugin_diffusion.recipes` is the entry point."""

__version__ = "0.1.0"
