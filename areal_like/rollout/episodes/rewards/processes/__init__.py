"""The processes in which a reward runs: the pool's view of them, their template, and what runs in each."""
