"""Software-engineering agents: tasks, sandboxes, agents, and the gateway that records them."""
