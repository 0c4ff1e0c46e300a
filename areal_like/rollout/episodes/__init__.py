"""Episodes: worker processes that lease groups, run workflows and rewards, and return the results."""
