"""Text environments: each instance in a process of its own, and the pools of these."""
