"""Run directories: lock, registry, files, checkpoints, resuming."""
