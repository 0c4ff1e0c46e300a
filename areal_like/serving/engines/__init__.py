"""Inference engines: what all have in common, and a folder for each."""
