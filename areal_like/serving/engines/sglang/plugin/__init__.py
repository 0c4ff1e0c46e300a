"""Runs in SGLang's own environment."""
