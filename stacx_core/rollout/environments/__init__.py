"""The kinds of environments, and how one is found by its name."""
