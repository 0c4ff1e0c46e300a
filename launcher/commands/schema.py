"""`--schema`: the JSON Schema of configuration files, for editors."""

import json

from areal_like.config.describe.json_schema import json_schema
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.schema import Schema


def show_schema(name: str | None) -> int:
    """Prints the JSON Schema of a user's class, or of the shipped experiments."""
    if name is None:
        return print_schema([Schema.of(EXPERIMENTS[kind]) for kind in ("ppo", "sft", "reward_model")])
    from areal_like.config.sources.user_schema import load_schema

    return print_schema([Schema.of(load_schema(name))])


def print_schema(schemas: list[Schema]) -> int:
    print(json.dumps(json_schema(schemas), indent=1))
    return 0
