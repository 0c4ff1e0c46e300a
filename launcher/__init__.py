"""The command line: checks, explains, plans and starts experiments. Imports no torch."""
