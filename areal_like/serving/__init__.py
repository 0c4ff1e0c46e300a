"""Inference servers: they generate samples and take weight updates."""
