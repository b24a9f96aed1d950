"""Agents that are programs of their own, run against the gateway, their commands in the sandbox of a task."""
