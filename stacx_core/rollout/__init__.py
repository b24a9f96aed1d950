"""Rollout: engines that generate, and the protocols that turn prompts into samples."""
