"""What every process of a run shares: who it is, its run's files, how it calls the others, how it waits and ends."""
