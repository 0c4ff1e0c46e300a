"""The server of a reward model."""
