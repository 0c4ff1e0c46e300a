"""How many conversations a step trains on for each sample of a prompt."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from areal_like.config.experiment import GRPOConfig

MULTI_TURN = "multi_turn"


def conversations_per_sample(config: "GRPOConfig") -> int:
    """`n_trajs` of the workflow multi_turn, else 1; of several environments the fewest."""
    own = [each.workflow for each in config.environments.train]
    workflows = [each if each.name else config.workflow for each in own] or [config.workflow]
    return min(int(each.args.get("n_trajs", 1)) if each.name == MULTI_TURN else 1 for each in workflows)
