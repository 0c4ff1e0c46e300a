"""The built-in reward `json_schema`: 1 for an answer whose JSON is valid under a schema."""

import json
from typing import Any

from areal_like.rollout.episodes.rewards.code.fenced_block import blocks_in_text, fenced_blocks

LABELS = ("json", "")


class JsonSchemaReward:
    """The JSON is all of the answer, or its last fenced block with the label json or none. `schema`: for all rows;
    without it each row has its own, as a mapping or as text."""

    def __init__(self, schema: dict[str, Any] | None = None) -> None:
        self._fixed = None if schema is None else _validator(schema)

    def __call__(self, prompt: Any, completion: str, schema: Any = None) -> float:
        if self._fixed is None and schema is None:
            raise ValueError(
                "the reward json_schema needs a schema: reward.args.schema, or a value `schema` of each row"
            )
        validator = self._fixed or _validator(json.loads(schema) if isinstance(schema, str) else schema)
        try:
            return float(validator.is_valid(json.loads(_json_text(completion), parse_constant=_refuse)))
        except (ValueError, ArithmeticError, RecursionError):
            return 0.0


def _json_text(completion: str) -> str:
    for find in (fenced_blocks, blocks_in_text):
        if blocks := [content for label, content in find(completion) if label in LABELS]:
            return blocks[-1]
    return completion


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _validator(schema: Any) -> Any:
    """References to other documents are never fetched."""
    import jsonschema
    from referencing import Registry

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    kind.check_schema(schema)
    return kind(schema, registry=Registry())
