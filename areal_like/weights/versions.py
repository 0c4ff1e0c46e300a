"""Versions of weights: those of step N are version N, and what it has learnt is published as N + 1."""

NO_VERSION = -1
"""That of weights that no trainer has sent."""
