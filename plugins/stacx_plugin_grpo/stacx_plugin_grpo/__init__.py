"""Policy gradients for Stacx; `stacx_plugin_grpo.recipes` is the entry point."""

__version__ = "0.1.0"
