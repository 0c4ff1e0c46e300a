"""How the agent of an episode is run: as a program of its own, or as a function in a thread."""
