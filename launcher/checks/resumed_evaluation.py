"""An evaluation that goes on where it was stopped must be the same one: model, engine, sampling, data and rewards."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal_like.config.allocation.grammar import AllocationSyntaxError, parse_server
from areal_like.config.allocation.models import only_evaluates, uses_api
from areal_like.config.environments import environment_name
from areal_like.config.problems import ConfigError, Problem
from areal_like.process.run import RUN_FACTS, open_run
from areal_like.rollout.evaluation.answer_folders import (
    PARTIAL,
    answers_folder,
    answers_path,
    evaluated_names,
    read_answers,
)
from launcher.plan.auto import resolved_values
from launcher.plan.plan import Resolved, RunDirectory
from launcher.runs.engine_precision import precision_values
from launcher.runs.resumable import run_config_values

if TYPE_CHECKING:
    from areal_like.config.loaded import Loaded

SAME = (
    *("seed", "actor.path", "actor.dtype", "tokenizer_path", "chat_template_args", "gconfig", "task", "workflow"),
    *("agent", "reward", "valid_dataset", "evaluator.num_examples", "evaluator.n_samples", "evaluator.gconfig"),
    *("evaluator.benchmarks", "rollout.server_type"),
)
"""Keys and sections that decide which answers are given and how they are scored."""
ENVIRONMENTS = "environments.train"
"""Compared where the held-out rows are theirs: these have their reward, workflow and length of answers. How they are
mixed is of training alone. Their names are compared as those of the list."""
WITHOUT_EFFECT = (
    *(f"valid_dataset.{name}" for name in ("batch_size", "shuffle", "drop_last", "num_workers", "pin_memory")),
    *("workflow.block_timeout_s", "agent.max_concurrent"),
    *("reward.timeout_s", "reward.processes", "reward.max_failed_share"),
    *(f"evaluator.benchmarks[].{name}" for name in ("freq_steps", "freq_epochs", "freq_secs")),
    *("evaluator.benchmarks[].reward.timeout_s", "evaluator.benchmarks[].reward.processes"),
    *(f"{ENVIRONMENTS}[].{name}" for name in ("name", "ratio", "reward.timeout_s", "reward.processes")),
)
"""Keys in them that do not: what takes too long is an error, which is asked again. Arguments of a task, a workflow or
a reward may have the same names, and always count."""
BACKEND, ADDRESSES = "rollout.backend", "rollout.server_addresses"
AGENT_TIMEOUT, FAILED_AGENT = "agent.timeout_s", "agent.failed_reward"
"""The first has no effect where an agent that failed has no reward."""
NOT_SET = "not set"


def other_evaluation_problems(
    loaded: "Loaded", auto: Mapping[str, Resolved], directory: RunDirectory
) -> Iterator[Problem]:
    """Each key that differs, with both values. A benchmark that is new or was removed is no other evaluation."""
    if directory.state != "continues" or not only_evaluates(loaded.config):
        return
    yield from _broken_answers(Path(directory.path))
    before, now = run_config_values(Path(directory.path)), resolved_values(loaded, auto.values())
    keys = (*SAME, ADDRESSES) if uses_api(loaded.config) else SAME
    held_out = loaded.config.valid_dataset
    if held_out is not None and not held_out.path:
        keys = (*keys, ENVIRONMENTS)
    was, given = dict(_leaves(before, keys)), dict(_leaves(now, keys))
    engine, other = _own_engine(now), _own_engine(before)
    if engine and other:
        was[BACKEND], given[BACKEND] = other, engine
        if engine == other:
            was, given = was | dict(_precision(before, engine)), given | dict(_precision(now, engine))
    if FAILED_AGENT not in {**was, **given}:
        was, given = ({key: each for key, each in side.items() if key != AGENT_TIMEOUT} for side in (was, given))
    for key in dict.fromkeys((*was, *given)):
        if was.get(key, NOT_SET) != given.get(key, NOT_SET) and not _is_one_sided(key, was, given):
            yield Problem(
                key,
                f"is {given.get(key, NOT_SET)!r}, and the answers that {directory.path} has were given with "
                f"{was.get(key, NOT_SET)!r}; keep that value, or start another evaluation with trial_name=",
            )


def _broken_answers(directory: Path) -> Iterator[Problem]:
    """Lines of the answers that it goes on from."""
    if not (directory / RUN_FACTS).is_file():
        return
    run = open_run(directory, own_class=False)
    for name in evaluated_names(directory):
        path = answers_path(answers_folder(run), 0, name)
        try:
            read_answers(path.with_suffix(PARTIAL))
            read_answers(path)
        except ConfigError as broken:
            yield from broken.problems


def _is_one_sided(key: str, *sides: Mapping[str, Any]) -> bool:
    """Whether the benchmark or the environment of this key exists on one side only. The list of environments, which
    is a key too, then differs."""
    item = key.rpartition("]")[0]
    return bool(item) and not all(any(each.startswith(f"{item}]") for each in side) for side in sides)


def _own_engine(values: Mapping[str, Any]) -> str:
    """The engine of the servers that a run starts, whatever their number; empty where they are others' or not known."""
    if _value(values, ADDRESSES):
        return ""
    backend = str(_value(values, BACKEND))
    try:
        return parse_server(backend).backend or ""
    except AllocationSyntaxError:  # one that only the module of the earlier `--schema` knows
        return backend


def _precision(values: Mapping[str, Any], engine: str) -> Iterator[tuple[str, Any]]:
    """A flag is the same one with dashes in its name."""
    for key, value in precision_values(engine, partial(_value, values)):
        section, _, name = key.rpartition(".")
        yield f"{section}.{name.replace('-', '_')}", value


def _value(values: Mapping[str, Any], key: str) -> Any:
    """None where there is no such key."""
    found: Any = values
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _leaves(values: Mapping[str, Any], keys: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for key in keys:
        found = _value(values, key)
        if key == "evaluator.benchmarks":
            for each in found or ():
                yield from _flat(f"{key}[{each['name']}]", f"{key}[]", each)
        elif key == ENVIRONMENTS:
            names = [environment_name(each.get("name"), each.get("id"), each.get("path", "")) for each in found or ()]
            yield key, names
            for name, each in zip(names, found or (), strict=True):
                yield from _flat(f"{key}[{name}]", f"{key}[]", each)
        else:
            yield from _flat(key, key, found)


def _flat(key: str, declared: str, value: Any) -> Iterator[tuple[str, Any]]:
    """`declared`: the key as WITHOUT_EFFECT names it."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if f"{declared}.{name}" not in WITHOUT_EFFECT:
                yield from _flat(f"{key}.{name}", f"{declared}.{name}", each)
    elif value is not None:
        yield key, value
