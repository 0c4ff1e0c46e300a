"""What AReaL's scripts decide about prompts and evaluations in Python, for the datasets of its examples.

AReaL requires the names of experiment and trial in `evaluator`, where here they follow: a file that repeats them there
is one of AReaL's. Its scripts also sample the evaluation; no file for this framework is changed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from areal_like.config.schema import Schema, ancestors
from areal_like.config.sources.layers import Layer
from areal_like.config.sources.leaves import LayerReader
from areal_like.config.sources.overrides import to_yaml_node

REPEATED = ("evaluator.experiment_name", "evaluator.trial_name")
SAMPLING = "evaluator.gconfig"
TEMPERATURE, THINKING = f"{SAMPLING}.temperature", "chat_template_args.enable_thinking"
CHOICE = tuple(f"{SAMPLING}.{name}" for name in ("greedy", "temperature", "top_p", "top_k", "min_p"))
DECIDED: Mapping[str, Mapping[str, Any]] = {
    "gsm8k": {TEMPERATURE: 0.6, THINKING: False},
    "torl": {TEMPERATURE: 0.6, THINKING: False},
    "countdown": {TEMPERATURE: 1.0},
}
"""Name of a known dataset -> what the scripts for it set. That of boba does not evaluate."""
CONVERSATION = "max_turns"
"""A key of the example with several turns, whose script decides neither."""


def script_layer(schema: Schema, layers: Sequence[Layer], dataset: str | None) -> Layer:
    """The keys that the script for a dataset sets; `layers` set what it does not decide. AReaL's script that only
    evaluates (an allocation with `+eval`) samples as in training."""
    values = {leaf.path: leaf.value for layer in layers for leaf in layer.leaves}
    keys = dict(DECIDED.get(dataset or "", {}))
    if not keys or "rollout" not in schema.sections or CONVERSATION in values:
        return Layer("known example")
    if str(values.get("allocation_mode")).endswith("+eval"):
        keys[TEMPERATURE] = "${gconfig.temperature}"
    if any(path in values for path in (SAMPLING, *CHOICE)):
        del keys[TEMPERATURE]
    reader = LayerReader(schema, lambda _: f"as in AReaL's script for {dataset}")
    for key, value in keys.items():
        if not any(path in values for path in (key, *ancestors(key))):
            reader.read_at(key, to_yaml_node(value))
    return Layer("known example", tuple(reader.result.leaves))


def is_of_areal(layers: Sequence[Layer]) -> bool:
    return set(REPEATED) <= {leaf.path for layer in layers if layer.kind == "file" for leaf in layer.leaves}
