"""Versions of weights: version N is used in step N, whose result is published as version N + 1."""

NO_VERSION = -1
"""Version of weights that no trainer has published."""
