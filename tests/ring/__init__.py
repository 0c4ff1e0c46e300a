"""Whole runs, started by the command line: real servers, a real controller, real workers and trainers."""
