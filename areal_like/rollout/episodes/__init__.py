"""Episodes: worker processes that lease work, run workflows and rewards, and hand in what came of it."""
