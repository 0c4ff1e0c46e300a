"""Continuous batching: who runs, where its keys and values lie, and how the model is run over them."""
