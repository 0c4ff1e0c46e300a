"""Evaluations: what is evaluated and when, the results, and the answers in files."""
