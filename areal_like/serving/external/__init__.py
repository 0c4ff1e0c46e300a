"""The process beside an engine of others: it starts and watches it, and speaks the run's language for it."""
