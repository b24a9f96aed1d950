"""Converts amounts."""
