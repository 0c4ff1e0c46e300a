"""The controller: the one process that knows what is generated, by which weights, and what is trained on next."""
