"""The losses of the roles, each on the velocities of a micro-batch."""
