"""Shared by all processes of a run: identity, run directory, HTTP, waits, child processes, exit."""
