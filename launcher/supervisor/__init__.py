"""Supervises the processes of a run: guardian, restarts, rollback, reports."""
