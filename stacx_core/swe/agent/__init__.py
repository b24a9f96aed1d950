"""The agent in this repository: it works on a task by bash, one command a turn."""
