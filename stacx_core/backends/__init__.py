"""Backends: the models and optimizers a role runs on."""
