"""Starts and kills processes on a machine."""
