"""Runs in vLLM's own environment, in its workers."""
