"""Where a run's rows are, as far as that can be known before it starts: files, folders, and datasets of the Hub."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from areal_like.config.checks.user_code import BUILT_IN
from areal_like.config.install_command import pip_command
from areal_like.data.hub_cache import cached_dataset, is_hub_name, not_cached_message
from areal_like.process.run import CONFIG, RUN_FACTS
from launcher.checks.rows import row_problems, task_row_problems
from launcher.plan.host import HostInfo
from launcher.plan.hub import offline_switch
from launcher.plan.plan import PlanProblem, Resolved

if TYPE_CHECKING:
    from areal_like.config.loaded import Loaded
    from areal_like.config.sections.data import DatasetConfig

SECTIONS = ("train_dataset", "valid_dataset")
TABLES = ("*.parquet", "data/*.parquet", "state.json", "dataset_dict.json")
"""What a folder has whose rows pyarrow reads."""


class Dataset(NamedTuple):
    """A dataset of the Hub that a run names. `folder` is where it is in the cache, if it is there."""

    section: str
    name: str
    revision: str | None
    folder: Path | None

    @property
    def key(self) -> str:
        return f"{self.section}.path"


def datasets(loaded: "Loaded", host: HostInfo) -> list[Dataset]:
    """Those whose path is neither a file, a folder nor a task."""
    return [
        Dataset(section, data.path, data.revision, cached_dataset(data.path, data.revision, host.hub))
        for section, data in _named(loaded)
        if is_hub_name(data.path) and _found(data.path, loaded, host) is None
    ]


def resolved_datasets(loaded: "Loaded", host: HostInfo) -> list[Resolved]:
    """Which commit of each is taken, to the end of the run."""
    return [
        Resolved(
            f"{each.section}.revision",
            each.folder.name,
            f"{each.revision or 'main'} of {each.name} in the Hugging Face cache",
        )
        for each in datasets(loaded, host)
        if each.folder is not None and each.revision != each.folder.name
    ]


def missing_datasets(loaded: "Loaded", host: HostInfo) -> list[Dataset]:
    """What would have to be fetched, each once."""
    missing = [each for each in datasets(loaded, host) if each.folder is None]
    return list({(each.name, each.revision): each for each in reversed(missing)}.values())[::-1]


def data_problems(loaded: "Loaded", host: HostInfo, counts: bool = True) -> list[PlanProblem]:
    """Files that are not there, packages that their formats need, datasets that may not be fetched, and, where it
    `counts` (servers alone read no rows), too few rows."""
    lacking = []
    for section, data in _named(loaded):
        found = _found(data.path, loaded, host)
        if found is None and not is_hub_name(data.path):
            looked = ", ".join(dict.fromkeys(str(path) for path in _candidates(data.path, loaded, host)))
            lacking.append(
                PlanProblem(f"{section}.path", f"there is no file or folder {data.path} (looked for {looked})")
            )
        lacking += [
            PlanProblem(
                f"{section}.path", f"{data.path} is read by the package {package}, which is not installed; {how}"
            )
            for package in (_packages(found) if found is not None or is_hub_name(data.path) else ())
            if find_spec(package) is None
            for how in (f"{pip_command(package)} installs it",)
        ]
        lacking += row_problems(section, data, found) if found is not None and counts else ()
    switch = offline_switch()
    for each in missing_datasets(loaded, host) if switch else ():
        why = f"{switch} is set, so that nothing is fetched"
        lacking.append(PlanProblem(each.key, not_cached_message(each.name, each.revision, host.hub, why)))
    return [*lacking, *(_of_task(loaded, host) if counts else ())]


def _of_task(loaded: "Loaded", host: HostInfo) -> list[PlanProblem]:
    """Of a task that rows to train on are taken from."""
    config = loaded.config
    data, name = config.train_dataset, _task(config)
    if name is None or data.path not in ("", name) or not _reads_rows(config):
        return []
    return task_row_problems(name, dict(config.task.args), data, (loaded.file.resolve().parent, host.directory))


def dataset_download_warnings(loaded: "Loaded", host: HostInfo) -> Iterator[str]:
    """For the plan: what a start would do first."""
    for each in missing_datasets(loaded, host) if offline_switch() is None else ():
        yield f"{each.key}: {each.name} is not in the Hugging Face cache ({host.hub}); a start downloads it first"


def _named(loaded: "Loaded") -> Iterator[tuple[str, "DatasetConfig"]]:
    """Datasets whose rows are at their path: not random tokens, and not of a task or an environment."""
    config = loaded.config
    task = _task(config)
    for section in SECTIONS if _reads_rows(config) else ():
        data = getattr(config, section)
        if data is not None and data.fake is None and data.path not in ("", task):
            yield section, data


def _reads_rows(config: Any) -> bool:
    """Whether there are rows at all, and not random tokens or an environment."""
    environments = getattr(config, "environments", None)
    return config.train_dataset.fake is None and not (environments is not None and environments.train)


def _task(config: Any) -> str | None:
    """A task of ours may also be named as the place that rows come from."""
    path: str = config.train_dataset.path
    name: str | None = config.task.name
    return path if name is None and path in BUILT_IN["task"] else name


def _found(path: str, loaded: "Loaded", host: HostInfo) -> Path | None:
    return next((place for place in _candidates(path, loaded, host) if place.exists()), None)


def _candidates(path: str, loaded: "Loaded", host: HostInfo) -> list[Path]:
    """Beside the experiment's file, then in the working directory: where a run looks. A run's own configuration stands
    for the file that it was started with."""
    beside = loaded.file.resolve().parent
    if loaded.file.name == CONFIG and (beside / RUN_FACTS).is_file():
        beside = Path(json.loads((beside / RUN_FACTS).read_text(encoding="utf-8")).get("folder", beside))
    return [folder / Path(path).expanduser() for folder in (beside, host.directory)]


def _packages(found: Path | None) -> tuple[str, ...]:
    """What reads the rows of a file or folder; those of a dataset of the Hub, where there is neither."""
    if found is None:
        return ("datasets", "huggingface_hub")
    is_table = found.suffix == ".parquet" if found.is_file() else any(next(found.glob(each), None) for each in TABLES)
    return ("pyarrow",) if is_table else ()
