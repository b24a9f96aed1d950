"""Grades of a class."""
