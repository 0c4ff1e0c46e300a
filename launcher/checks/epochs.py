"""Counts the steps of `total_train_epochs`, and warns where they are fewer than `total_train_steps`."""

from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from areal_like.config.built_in import PACKAGES, TASK_SIZES, TASKS
from areal_like.config.problems import Problem, plural
from areal_like.data.readers.dataset_files import JSON_LINES
from launcher.plan.changes import is_set_by_user
from launcher.plan.host import HostInfo

if TYPE_CHECKING:
    from areal_like.config.loaded import Loaded
    from areal_like.config.sections.data import DatasetConfig

STEPS = "total_train_steps"
MAX_COUNTED_BYTES = 1 << 26
"""Larger files are not counted for a plan; the run warns once it has read them."""
SPECIAL_TOKENS = 2
"""Around a text, beside one for each of its characters at most."""


class DataSteps(NamedTuple):
    """The steps of all epochs. `at_least`: there may be more; `at_most`: rows that are too long may be dropped."""

    steps: int
    at_least: bool
    at_most: bool


def data_steps(loaded: "Loaded", host: HostInfo) -> DataSteps | None:
    """None where the rows cannot be counted cheaply."""
    config = loaded.config
    data = config.train_dataset
    if config.bench or data.fake is not None or (counted := _rows(loaded, host)) is None:
        return None
    rows, at_least, longest = counted
    at_most = data.max_length is not None and (longest is None or data.max_length < longest)
    steps = rows // data.batch_size if data.drop_last else ceil(rows / data.batch_size)
    return DataSteps(steps * config.total_train_epochs, at_least, at_most) if steps else None


def data_end_warnings(loaded: "Loaded", data: DataSteps) -> list[Problem]:
    """The warning of a plan, where all rows are counted."""
    found = None if data.at_least else _data_end(loaded, data.steps)
    return [] if found is None else [found]


def data_end_text(loaded: "Loaded", steps: int) -> str | None:
    """The warning for data that end after `steps`; None where they last."""
    found = _data_end(loaded, steps)
    return None if found is None else found.text()


def _data_end(loaded: "Loaded", steps: int) -> Problem | None:
    config = loaded.config
    if not _has_step_goal(loaded) or not 0 < steps < config.total_train_steps:
        return None
    epochs = ceil(config.total_train_steps * config.total_train_epochs / steps)
    return Problem(
        "total_train_epochs",
        f"is {config.total_train_epochs}, which ends the run after {plural(steps, 'step')}, before "
        f"{STEPS}={config.total_train_steps}; set total_train_epochs={epochs}",
    )


def _has_step_goal(loaded: "Loaded") -> bool:
    config = loaded.config
    if config.bench or not config.total_train_steps or config.total_train_n_seqs:
        return False
    return config.train_dataset.fake is None and is_set_by_user(loaded, STEPS)


def _rows(loaded: "Loaded", host: HostInfo) -> tuple[int, bool, int | None] | None:
    """The number of rows, whether there may be more, and how long a row is at most."""
    config = loaded.config
    environments, path = getattr(config, "environments", None), config.train_dataset.path
    if environments is not None and environments.train:
        return None
    name = config.task.name or path
    if not isinstance(path, str):
        return None
    if name in TASKS and path in ("", name):
        return None if config.task.args else _rows_of_task(name, config.train_dataset)
    file = loaded.folder / Path(path).expanduser()
    file = file if file.is_file() else host.directory / Path(path).expanduser()
    if config.task.name or file.suffix != JSON_LINES or not file.is_file() or file.stat().st_size > MAX_COUNTED_BYTES:
        return None
    with file.open("rb") as lines:
        return sum(1 for line in lines if line.strip()), False, None


def _rows_of_task(name: str, data: "DatasetConfig") -> tuple[int, bool, int | None]:
    size = TASK_SIZES[name]
    adds_text = data.as_chat or data.prompt_template is not None or data.system_prompt is not None
    return size.num_rows, name in PACKAGES["task"], None if adds_text else size.characters + SPECIAL_TOKENS
