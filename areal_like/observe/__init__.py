"""What can be seen of a run: metrics by documented names, trackers, the live view, the summary at the end.

Processes write their own lines (`MetricWriter`); a thread of the launcher joins them (`Observer`). Nothing here imports
torch.
"""
