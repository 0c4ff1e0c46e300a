"""Sweeps: Hydra's sweepers and launchers over points that are checked first. Entry point: `run.sweep`."""
