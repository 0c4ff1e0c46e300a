"""The trainer: sharded models, optimizers, losses, checkpoints, and the publication of weights."""
