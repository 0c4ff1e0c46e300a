"""Locates the datasets of a run before it starts: files, folders, datasets of the Hub."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from areal_like.config.allocation.models import only_evaluates
from areal_like.config.benchmarks import benchmark_task, dataset_of
from areal_like.config.built_in import TASKS
from areal_like.config.environments import LIST, environment_task, rows_of
from areal_like.config.install_command import pip_command
from areal_like.config.problems import Problem
from areal_like.config.sections.data import paths_of, revisions_of
from areal_like.config.suggest import nearest
from areal_like.config.task_names import task_name
from areal_like.data.data_record import RECORD, read_record
from areal_like.data.readers.dataset_files import is_arrow
from areal_like.data.readers.hub_cache import cached_dataset, is_hub_name, not_cached_message
from launcher.checks.rows import files_of, first_row, num_shared_lines, row_problems, task_row_problems
from launcher.plan.host import HostInfo
from launcher.plan.hub import offline_switch
from launcher.plan.plan import Resolved, RunDirectory

if TYPE_CHECKING:
    from areal_like.config.loaded import Loaded
    from areal_like.config.sections.data import DatasetConfig

SECTIONS, BENCHMARKS = ("train_dataset", "valid_dataset"), "evaluator.benchmarks"
LIKE = 0.75
"""How similar a name is that is suggested for a path."""


class Dataset(NamedTuple):
    """A dataset of the Hub. `folder`: its place in the cache, if it is there."""

    section: str
    name: str
    revision: str | None
    folder: Path | None

    @property
    def key(self) -> str:
        return f"{self.section}.path"


def datasets(loaded: "Loaded", host: HostInfo) -> list[Dataset]:
    """Datasets whose path is neither a file, a folder nor a task."""
    return [
        Dataset(section, path, revision, _cached(path, revision, host))
        for section, data in _named(loaded)
        for path, revision in zip(paths_of(data.path), revisions_of(data), strict=True)
        if _is_of_hub(path, loaded, host)
    ]


def resolved_datasets(loaded: "Loaded", host: HostInfo, directory: RunDirectory) -> Iterator[Resolved]:
    """The commit of each dataset, or of each path of a list, which is fixed for the whole run. A run that continues
    keeps its commits where no revision is set."""
    record = read_record(Path(directory.path) / RECORD) if directory.state == "continues" else {}
    for section, data in _named(loaded):
        known, commits, reasons = record.get(section, {}).get("hub", {}), [], []
        for path, revision in zip(paths_of(data.path), revisions_of(data), strict=True):
            commit: str | None = ""
            if _is_of_hub(path, loaded, host):
                before = known.get(path) if revision is None else None
                folder = _cached(path, revision, host) if before is None else Path(before["folder"])
                commit = folder.name if folder is not None else None
                source = "in the Hugging Face cache" if before is None else "when the run began"
                reasons.append(f"{revision or 'main'} of {path} {source}")
            commits.append(commit)
        value: Any = commits[0] if len(commits) == 1 else commits
        if reasons and None not in commits and value != data.revision:
            yield Resolved(f"{section}.revision", value, ", ".join(reasons))


def missing_datasets(loaded: "Loaded", host: HostInfo) -> list[Dataset]:
    """Datasets that have to be downloaded, each once."""
    missing = [each for each in datasets(loaded, host) if each.folder is None]
    return list({(each.name, each.revision): each for each in reversed(missing)}.values())[::-1]


def data_problems(loaded: "Loaded", here: HostInfo, serves: bool) -> list[Problem]:
    """Missing files, missing packages for their formats, datasets that may not be downloaded, and too few rows, unless
    only servers run."""
    host, counts = here, not serves
    problems = []
    for section, data, path in _paths(loaded):
        local = _found(path, loaded, host)
        if local is None and not is_hub_name(path):
            searched = ", ".join(dict.fromkeys(str(place) for place in _candidates(path, loaded, host)))
            missing = f"there is no file or folder {path}{_meant(path, loaded, host)} (searched: {searched})"
            problems.append(Problem(f"{section}.path", missing))
        problems += [
            Problem(f"{section}.path", f"reading {path} needs the package {package}: {pip_command(package)}")
            for package in (_packages(local) if local is not None or is_hub_name(path) else ())
            if find_spec(package) is None
        ]
        if local is not None and counts and not (section == SECTIONS[0] and only_evaluates(loaded.config)):
            problems += row_problems(section, data, local)
    switch = offline_switch()
    for each in missing_datasets(loaded, host) if switch else ():
        why = f"{switch} is set, which forbids downloads"
        problems.append(Problem(each.key, not_cached_message(each.name, each.revision, host.hub, why)))
    return [*problems, *(_of_task(loaded, host) if counts else ())]


def _of_task(loaded: "Loaded", host: HostInfo) -> list[Problem]:
    """Too few training rows of a task."""
    config = loaded.config
    data, name = config.train_dataset, task_name(config)
    if name is None or data.path not in ("", name) or not _reads_rows(config) or only_evaluates(config):
        return []
    return task_row_problems(name, dict(config.task.args), data, (loaded.folder, host.directory))


def dataset_download_warnings(loaded: "Loaded", host: HostInfo) -> Iterator[Problem]:
    """Warnings of a plan: a start downloads these first."""
    for each in missing_datasets(loaded, host) if offline_switch() is None else ():
        partly = cached_dataset(each.name, each.revision, host.hub, unlisted=True) is not None
        place = f"{'perhaps only in part' if partly else 'not'} in the Hugging Face cache ({host.hub})"
        missing = f"{each.name} is {place}; a start downloads it first"
        yield Problem(each.key, missing)


def shared_row_warnings(loaded: "Loaded", here: HostInfo, serves: bool) -> Iterator[Problem]:
    """Held-out rows that are training rows, letter by letter, in small files of JSON lines."""
    files: dict[str, list[Path]] = {}
    for section, data in _named(loaded) if not serves else ():
        places = [_found(path, loaded, here) for path in paths_of(data.path)]
        split = "train" if section == SECTIONS[0] else "valid"
        if None not in places:
            files[section] = [file for place in places if place is not None for file in files_of(data, place, split)]
    train = files.pop(SECTIONS[0], [])
    for section, others in files.items() if train else ():
        number, num_rows = num_shared_lines(train, others)
        if number:
            message = f"{number} of its {num_rows} rows are training rows too; the command `overlap` shows them"
            yield Problem(f"{section}.path", message)


def training_files(loaded: "Loaded", here: HostInfo) -> list[Path]:
    """The files of the training rows, where all of them are here; else none."""
    for section, data in _named(loaded):
        places = [_found(path, loaded, here) for path in paths_of(data.path)]
        if section == SECTIONS[0] and None not in places:
            return [file for place in places if place is not None for file in files_of(data, place, "train")]
    return []


def first_row_of_data(loaded: "Loaded", here: HostInfo) -> dict[str, Any] | None:
    """The first training row of JSON lines; None for other data."""
    for section, data, path in _paths(loaded):
        place = _found(path, loaded, here)
        if section == SECTIONS[0] and place is not None:
            files = files_of(data, place, "train")
            return first_row(section, data, files[0]) if files else None
    return None


def _named(loaded: "Loaded") -> Iterator[tuple[str, "DatasetConfig"]]:
    """Datasets that are read from their path: not fake data or tasks."""
    config = loaded.config
    trained = getattr(config, "environments", None)
    task = task_name(config)
    for section in SECTIONS if _reads_rows(config) else ():
        data = getattr(config, section)
        if data is not None and data.fake is None and data.path != task and paths_of(data.path):
            yield section, data
    for index, environment in enumerate(trained.train if trained is not None and _reads_rows(config) else ()):
        if environment_task(environment) is None:
            yield f"{LIST}.{index}", rows_of(environment, config.train_dataset)
    for index, benchmark in enumerate(config.evaluator.benchmarks if _reads_rows(config) else ()):
        if benchmark_task(benchmark) is None:
            yield f"{BENCHMARKS}.{index}", dataset_of(benchmark)


def _paths(loaded: "Loaded") -> Iterator[tuple[str, "DatasetConfig", str]]:
    """Each path, with its section."""
    return ((section, data, path) for section, data in _named(loaded) for path in paths_of(data.path))


def _is_of_hub(path: str, loaded: "Loaded", host: HostInfo) -> bool:
    return is_hub_name(path) and _found(path, loaded, host) is None


def _reads_rows(config: Any) -> bool:
    """Not with fake data."""
    return config.train_dataset.fake is None


def _cached(path: str, revision: str | None, host: HostInfo) -> Path | None:
    """Where downloads are forbidden, what is there has to do."""
    return cached_dataset(path, revision, host.hub, unlisted=offline_switch() is not None)


def _found(path: str, loaded: "Loaded", host: HostInfo) -> Path | None:
    return next((place for place in _candidates(path, loaded, host) if place.exists()), None)


def _candidates(path: str, loaded: "Loaded", host: HostInfo) -> list[Path]:
    """Relative to the experiment's file, then to the working directory."""
    return [folder / Path(path).expanduser() for folder in (loaded.folder, host.directory)]


def _meant(path: str, loaded: "Loaded", host: HostInfo) -> str:
    """A task of a similar name, or a file that lies where this one was searched."""
    folders = {place.parent for place in _candidates(path, loaded, host) if place.parent.is_dir()}
    given, meant = Path(path), {task: task for task in TASKS}
    for place in sorted(place for folder in folders for place in folder.iterdir()):
        if place.suffix == given.suffix:
            meant[place.stem] = str(given.with_name(place.name))
    guess = nearest(given.stem, list(meant), LIKE)
    return f"; did you mean {meant[guess[0]]}?" if guess else ""


def _packages(local: Path | None) -> tuple[str, ...]:
    """Packages that read the rows of a file or folder, or (None) of a dataset of the Hub."""
    if local is None:
        return ("datasets", "huggingface_hub")
    return ("pyarrow",) if is_arrow(local) else ()
