"""The trainer: a model sharded over ranks, what it learns from, and what it leaves behind."""
