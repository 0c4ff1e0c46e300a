"""Loads the datasets of a run: from its task, from files, or from the Hub."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.config.benchmarks import SPLIT, benchmark_task, dataset_of
from areal_like.config.built_in import TASKS
from areal_like.config.environments import LIST, environment_task, names_of, place_of, rows_of
from areal_like.config.problems import ConfigError
from areal_like.config.sections.environments import EnvironmentConfig
from areal_like.config.task_names import task_name
from areal_like.data.checked_rows import CheckedRows, check_rows
from areal_like.data.data_record import open_section
from areal_like.data.mixed_rows import mixed
from areal_like.data.mixing import concatenated, training_mix
from areal_like.data.readers.dataset_files import too_few_message
from areal_like.data.readers.dataset_source import DatasetSource, RawRows
from areal_like.data.tasks import TEST, TRAIN, Task, make_task
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders, config_error, describe_error

__all__ = ["CheckedRows", "Datasets", "environments_of", "item_errors", "load_datasets"]

TASK_SPLIT = {"train": TRAIN, "valid": TEST}
"""Dataset of an experiment -> split of a task."""


@dataclass(frozen=True)
class Datasets:
    """`benchmarks`: split -> rows of a benchmark."""

    train: CheckedRows
    valid: CheckedRows | None
    benchmarks: Mapping[str, CheckedRows] = field(default_factory=dict)
    environments: Mapping[str, CheckedRows] = field(default_factory=dict)
    """The training rows of each, before they are mixed; by `environment/NAME`."""
    sections: Mapping[str, str] = field(default_factory=dict)
    """Split -> the key of its section, for messages."""

    def of(self, split: str) -> CheckedRows:
        rows = {"train": self.train, "valid": self.valid, **self.benchmarks, **self.environments}[split]
        if rows is None:
            raise ValueError("valid_dataset: this run has none")
        return rows

    def section_of(self, split: str) -> str:
        return self.sections.get(split, f"{split}_dataset")


def environments_of(config: Any) -> list[EnvironmentConfig]:
    """Those to train on; supervised training has none."""
    return [] if (found := getattr(config, "environments", None)) is None else list(found.train)


def _load_limit_s(config: Any) -> float | None:
    """How long an environment of verifiers may take to load. None: supervised training has no such environments."""
    return None if (rollout := getattr(config, "rollout", None)) is None else rollout.setup_timeout


class FoundRows(NamedTuple):
    """The unchecked rows of a split, and the settings that they come from."""

    split: str
    section: str
    dataset: Any
    raw: RawRows
    environment: str = ""
    """Several of a split with their names are mixed."""


def find_rows(config: Any, places: SearchFolders, record: Path | None = None) -> Iterator[FoundRows]:
    """Of the training data, of `valid_dataset` and of each benchmark."""
    name, chosen, limit_s = task_name(config), config.valid_dataset, _load_limit_s(config)
    task = None if name is None else make_task(name, dict(config.task.args), places, limit_s)
    environments = environments_of(config)

    def find(split: str, dataset: Any, section: str, task: Task | None = task, name: str | None = name) -> RawRows:
        if task is None or dataset.path not in ("", name):
            return DatasetSource(section, split, dataset, record).find(places, TASKS)
        DatasetSource(section, split, dataset).refuse(f"rows are of task {name}, which", "split", "subset", "revision")
        source = f"the {TASK_SPLIT[split]} split of task {name}"
        return RawRows(_rows_of(task, split, name or ""), source, lambda number: f"row {number} of {source}", "")

    for split, dataset in (("train", config.train_dataset), ("valid", chosen)):
        if dataset is None or (dataset.fake is not None and split != "train"):
            continue
        if environments and (split == "train" or not dataset.path):
            for index, (environment, called) in enumerate(zip(environments, names_of(environments), strict=True)):
                section, own, rows = f"{LIST}.{index}", environment_task(environment), rows_of(environment, dataset)
                with item_errors(section):
                    made = None if own is None else make_task(*own, places, limit_s)
                    raw = find(split, rows, section, made, None if own is None else own.name)
                yield FoundRows(split, section, rows, raw, called)
        else:
            section = f"{split}_dataset"
            yield FoundRows(split, section, dataset, find(split, dataset, section))
    for index, each in enumerate(config.evaluator.benchmarks):
        section, own, dataset = f"evaluator.benchmarks.{index}", benchmark_task(each), dataset_of(each)
        with item_errors(section):
            made = None if own is None else make_task(*own, places, limit_s)
            raw = find("valid", dataset, section, made, None if own is None else own.name)
        yield FoundRows(f"{SPLIT}{each.name}", section, dataset, raw)


def load_datasets(config: Any, places: SearchFolders, tokenizer: TextTokenizer, record: Path | None = None) -> Datasets:
    """All datasets of an experiment. `record` is the file where a run records its rows."""
    found: dict[str, list[CheckedRows]] = {}
    sections: dict[str, str] = {}
    for split, section, dataset, raw, environment in find_rows(config, places, record):
        is_item = bool(environment) or split.startswith(SPLIT)
        with item_errors(section) if is_item else contextlib.nullcontext():
            rows = check_rows(section, dataset, raw, tokenizer)
        found.setdefault(split, []).append(replace(rows, name=environment))
        sections[split] = f"{split}_dataset" if environment else section
        sections |= {place_of(split, environment): section} if environment else {}
        if not (environment and split == "valid"):
            with open_section(record, section) as entry:
                entry |= {"source": rows.source, "rows": len(rows), "digest": rows.digest}
                entry["has_messages"] = rows.has_messages
    loaded = {split: _together(config, split, parts) for split, parts in found.items()}
    train, size = loaded["train"], config.train_dataset.batch_size
    if config.train_dataset.drop_last and len(train) < size and config.total_train_steps != 0:
        raise config_error("train_dataset.batch_size", too_few_message(size, train.source, len(train)))
    environments = {place_of("train", each.name): each for each in found["train"] if each.name}
    return Datasets(loaded.pop("train"), loaded.pop("valid", None), loaded, environments, sections)


def _together(config: Any, split: str, parts: Sequence[CheckedRows]) -> CheckedRows:
    """The rows of environments: mixed for training, one after the other for evaluation."""
    if len(parts) == 1:
        return parts[0]
    sizes = [len(each) for each in parts]
    return mixed(f"{split}_dataset", parts, training_mix(config, sizes) if split == "train" else concatenated(sizes))


@contextlib.contextmanager
def item_errors(section: str) -> Iterator[None]:
    """Errors about `task`, `workflow` or `reward` are of this benchmark or environment."""
    try:
        yield
    except ConfigError as error:
        own = [each for each in error.problems if each.key.startswith(section)]
        others = [replace(each, key=item_key(section, each.key)) for each in error.problems if each not in own]
        problems = [*own, *others]
        raise ConfigError(problems) from error.__cause__


def item_key(section: str, key: str) -> str:
    """The task of an environment is its `id`, with its `args`."""
    if section.startswith(LIST):
        key = "id" if key == "task.name" else key.removeprefix("task.")
    return f"{section}.{key}"


def _rows_of(task: Task, split: str, name: str) -> Sequence[Any]:
    task_split = TASK_SPLIT[split]
    try:
        rows: Any = task.rows(task_split)
    except BaseException as fault:
        if isinstance(fault, KeyboardInterrupt):
            raise
        raise config_error(
            "task.name", f"rows({task_split!r}) of {name} failed: {describe_error(fault)}", fault
        ) from fault
    if not isinstance(rows, Sequence):
        message = f"rows({task_split!r}) of {name} returned {type(rows).__name__}"
        raise config_error("task.name", f"{message}; return a list, or another sequence with a length")
    return rows
