"""Checks: of one value, of several keys together, of user code, of what is not built."""
