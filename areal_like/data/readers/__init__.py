"""Rows in files, folders and on the Hub: found, opened and read on access."""
