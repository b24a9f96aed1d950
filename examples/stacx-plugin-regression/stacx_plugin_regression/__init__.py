"""Linear regression as a plugin for Stacx: the smallest recipe whose samples are no tokens."""
