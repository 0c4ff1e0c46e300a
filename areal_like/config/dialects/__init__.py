"""Dialects: support for files of other frameworks. One module per framework."""
