"""What a run needs from Slurm and Ray."""
