"""Chaos: short runs, to each of which something happens that a draw chose. `python -m tests.chaos --help`."""
