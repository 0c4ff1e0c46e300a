"""Inference servers: what is started, fed with weights and asked for tokens."""
