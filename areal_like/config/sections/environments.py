"""Environments that bring rows, interaction and rewards together, and how several are mixed."""

from typing import Any

from areal_like.config.fields import config, key, section


@config
class EnvironmentConfig:
    """One environment."""

    id: str = key(required=True)
    """Installed environment, as `name` or `owner/name`."""

    args: dict[str, Any] = key({})
    """Arguments for the environment's own loader."""

    name: str | None = key(None)
    """What it is called in metrics and logs. Null: its id. Two of the same id need names."""


@config
class EnvironmentMixConfig:
    """How the rows of several environments become one set."""

    strategy: str = key("interleave", choices=("interleave", "concatenate"))
    """Take from the environments by turns, or one after the other."""

    probabilities: list[float] | None = key(None, ge=0)
    """How often each environment is drawn from, one number each; they need not add up to 1. Null: by turns."""

    stopping_strategy: str = key("all_exhausted", choices=("first_exhausted", "all_exhausted"))
    """When interleaving: stop at the end of the shortest, or begin short ones again until every row was used."""

    seed: int | None = key(None)
    """Seed of the draws. Null: derived from the experiment's `seed`."""


@config
class EnvironmentsConfig:
    """Environments to train on. None by default: rows then come from `task` or `train_dataset`."""

    train: list[EnvironmentConfig] = key([])
    """The environments, as a list of `id`, `args` and `name`."""

    mix: EnvironmentMixConfig = section(EnvironmentMixConfig)
    """How several environments are mixed."""
