"""Learning from preferences for Stacx; `stacx_plugin_preference.recipes` is the entry point."""

__version__ = "0.1.0"
