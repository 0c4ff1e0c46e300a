"""Server of a reward model."""
