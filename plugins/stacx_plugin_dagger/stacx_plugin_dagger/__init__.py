"""Learning from an expert that can be asked; `stacx_plugin_dagger.recipes` is the entry point."""

__version__ = "0.1.0"
