"""The plan: what a run will be, before anything is started. A dry run prints it, the launcher executes it."""
