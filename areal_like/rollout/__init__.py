"""From prompts to batches: the controller with its gate, ledger and batches, and the episodes that it leases out."""
