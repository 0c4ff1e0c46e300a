"""Observability of a run: metrics with documented names, trackers, the live view, the summary at the end.

Each process writes its metric lines (`MetricWriter`); a thread of the launcher joins them (`Observer`). Imports no
torch.
"""
