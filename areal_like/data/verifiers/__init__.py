"""Environments of the package verifiers, each in a process of its own."""
