"""What runs inside the Python of an environment of verifiers: the standard library and its packages alone."""
