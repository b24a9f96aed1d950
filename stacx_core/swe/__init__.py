"""Software-engineering agents: their tasks, the sandboxes they work in, and how what they did is scored."""
