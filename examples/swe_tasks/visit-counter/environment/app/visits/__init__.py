"""Counts visits."""
