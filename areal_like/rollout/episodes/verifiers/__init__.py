"""Environments of the package verifiers, played in processes of their own."""
