"""Distillation for Stacx; `stacx_plugin_distill.recipes` is the entry point."""

__version__ = "0.1.0"
