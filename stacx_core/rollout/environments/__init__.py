"""Adapters that make other packages' tasks and games environments."""
