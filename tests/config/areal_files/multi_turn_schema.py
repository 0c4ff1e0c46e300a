"""User schemas of AReaL's multi-turn example, declared in both supported ways.

python -m launcher --config multi_turn_math.yaml --schema tests.config.areal_files.multi_turn_schema:MultiTurnConfig
"""

from dataclasses import dataclass, field

from areal_like.config.experiment import GRPOConfig
from areal_like.config.fields import config, key


@dataclass
class MultiTurnConfig(GRPOConfig):
    """GRPO where an answer may be tried again, as a plain dataclass: type hints, defaults, nothing of ours."""

    n_trajs: int = field(default=1, metadata={"help": "Trajectories of each problem."})
    max_turns: int = field(default=4, metadata={"help": "Attempts in one trajectory."})


@config
class CheckedMultiTurnConfig(GRPOConfig):
    """The same with our declarations: what is out of range is refused."""

    n_trajs: int = key(1, ge=1)
    """Trajectories of each problem."""

    max_turns: int = key(4, ge=1, le=64)
    """Attempts in one trajectory."""
