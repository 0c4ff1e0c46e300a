"""What scripts of AReaL's examples decide in Python: the workflow that reads the keys of their own classes.

Such a class comes with `--schema`. Its keys are the arguments of a built-in workflow, unless `workflow.name` is set.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from areal_like.config.schema import Schema
from areal_like.config.sources.layers import Layer
from areal_like.config.sources.leaves import LayerReader
from areal_like.config.sources.overrides import to_yaml_node

WORKFLOW = "workflow"


class Example(NamedTuple):
    """`named_by` are the keys that tell it; `keys` where the others go, those that a class has."""

    title: str
    named_by: tuple[str, ...]
    sets: Mapping[str, Any]
    keys: Mapping[str, str]


EXAMPLES = (
    Example(
        "multi-turn math",
        ("n_trajs", "max_turns"),
        {"workflow.name": "multi_turn", "workflow.args.export_style": "individual"},
        {
            "workflow.args.n_trajs": "n_trajs",
            "workflow.args.max_turns": "max_turns",
            "gconfig.max_tokens": "max_tokens_per_trajectory",
        },
    ),
    Example(
        "tool-integrated reasoning",
        ("tir.max_turns",),
        {
            "workflow.name": "tool_integrated",
            "train_dataset.system_prompt": "Think step by step. A fenced block of the language python in your answer "
            "is run, and what it prints is inserted behind it. Put your final answer within \\boxed{}.",
        },
        {
            "workflow.args.max_calls": "tir.max_turns",
            "workflow.args.call_timeout_s": "tir.tool_timeout",
            "workflow.args.tools": "tir.enable_tools",
            "workflow.args.max_answer_tokens": "tir.max_length",
            "gconfig.max_tokens": "tir.max_length",
        },
    ),
)


def example_layer(schema: Schema, layers: Sequence[Layer]) -> Layer:
    """The keys that follow from those of an example; `layers` set what they do not follow for."""
    taken = {leaf.path for layer in layers for leaf in layer.leaves}
    example = next((each for each in EXAMPLES if schema.keys.keys() >= set(each.named_by)), None)
    if example is None or any(path == f"{WORKFLOW}.name" for path in taken):
        return Layer("known example")
    keys = {**example.sets, **{ours: f"${{{own}}}" for ours, own in example.keys.items() if own in schema.keys}}
    reader = LayerReader(schema, lambda _: f"{', '.join(example.named_by)} as in {example.title} of AReaL")
    for key, value in keys.items():
        if key not in taken:
            reader.read_at(key, to_yaml_node(value))
    return Layer("known example", tuple(reader.result.leaves))
