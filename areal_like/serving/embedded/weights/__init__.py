"""Weights and adapters beside those in use, and how they take their place."""
