"""Bringing the trainer's weights to SGLang servers: `WeightSync` and its transports."""
