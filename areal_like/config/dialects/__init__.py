"""Dialects: files written for another framework, read as they are. One module for each framework."""
