"""An evaluation that goes on where it was stopped must be the same one: model, sampling, data and rewards."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_like.config.allocation.models import only_evaluates, uses_api
from areal_like.config.problems import Problem
from launcher.plan.auto import resolved_values
from launcher.plan.plan import Resolved, RunDirectory
from launcher.runs.resumable import run_config_values

if TYPE_CHECKING:
    from areal_like.config.loaded import Loaded

SAME = (
    *("seed", "actor.path", "actor.dtype", "tokenizer_path", "chat_template_args", "gconfig", "task", "workflow"),
    *("agent", "reward", "valid_dataset", "evaluator.num_examples", "evaluator.n_samples", "evaluator.gconfig"),
    *("evaluator.benchmarks", "rollout.server_type"),
)
"""Keys and sections that decide which answers are given and how they are scored."""
WITHOUT_EFFECT = (
    *("batch_size", "shuffle", "drop_last", "num_workers", "pin_memory", "timeout_s", "processes", "max_failed_share"),
    *("freq_steps", "freq_epochs", "freq_secs", "block_timeout_s"),
)
"""Names of keys in them that do not."""
NOT_SET = "not set"


def other_evaluation_problems(
    loaded: "Loaded", auto: Mapping[str, Resolved], directory: RunDirectory
) -> Iterator[Problem]:
    """Each key that differs, with both values. A benchmark that is new or was removed is no other evaluation."""
    if directory.state != "continues" or not only_evaluates(loaded.config):
        return
    before, now = run_config_values(Path(directory.path)), resolved_values(loaded, auto.values())
    keys = (*SAME, "rollout.server_addresses") if uses_api(loaded.config) else SAME
    was, given = dict(_leaves(before, keys)), dict(_leaves(now, keys))
    for key in dict.fromkeys((*was, *given)):
        if was.get(key, NOT_SET) != given.get(key, NOT_SET) and not _is_one_sided(key, was, given):
            yield Problem(
                key,
                f"is {given.get(key, NOT_SET)!r}, and the answers that {directory.path} has were given with "
                f"{was.get(key, NOT_SET)!r}; keep that value, or start another evaluation with trial_name=",
            )


def _is_one_sided(key: str, *sides: Mapping[str, Any]) -> bool:
    """Whether the benchmark of this key exists on one side only."""
    benchmark = key.rpartition("]")[0]
    return bool(benchmark) and not all(any(each.startswith(f"{benchmark}]") for each in side) for side in sides)


def _leaves(values: Mapping[str, Any], keys: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for key in keys:
        found: Any = values
        for name in key.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        if key == "evaluator.benchmarks":
            for each in found or ():
                yield from _flat(f"{key}[{each['name']}]", each)
        else:
            yield from _flat(key, found)


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, each in value.items():
            if name not in WITHOUT_EFFECT:
                yield from _flat(f"{key}.{name}", each)
    elif value is not None:
        yield key, value
