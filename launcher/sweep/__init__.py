"""`--multirun`: Hydra's sweepers and launchers over strictly checked points. `run.sweep` is the door."""
