"""Checks of a resumed run: a tokenizer and rows other than those of its checkpoint, and what may change."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from areal_like.config.allocation.models import only_evaluates
from areal_like.config.built_in import TASKS
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.task_names import task_name
from areal_like.data.readers.dataset_files import JSON_LINES
from areal_like.process.checkpoint_files import RESUME, step_of
from launcher.checks.rows import LARGEST_COMPARED_BYTES
from launcher.plan.datasets import training_files
from launcher.plan.host import HostInfo
from launcher.plan.model_config import find_model_config
from launcher.plan.plan import RunDirectory
from launcher.plan.run_directory import resumed_checkpoint
from launcher.runs.resumable import run_config_values

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig
    from areal_like.config.loaded import Loaded

TOKENIZER = "tokenizer.json"
TOKENIZER_FILES = (TOKENIZER, "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "added_tokens.json")
"""Files that decide the ids of tokens."""
FORMATTING = ("truncation", "padding")
"""Parts of `tokenizer.json` that do not."""
SAVED_DIGEST = {"controller.frame": 3, "data.json": 2}
"""Files of a checkpoint's resume state with the digest of the rows, and their formats."""
ROWS = ("train_dataset", "task")
KEEP_DATA = "recover.skip_dataloader=true starts the data over"
OTHER_DATA = "does not fit; `recover.skip_dataloader=true` starts the data over"


class Change(NamedTuple):
    """What follows where a resumed run has other values than its checkpoint."""

    keys: str
    effect: str


CHANGES = (
    Change(
        "`optimizer.type`, `use_lora` and the keys of adapters; a `path` to a model of another shape", "does not fit"
    ),
    Change("`tokenizer_path`, where its tokens have other ids", "does not fit"),
    Change("`train_dataset`, `task`, `environments`, where the rows are others", OTHER_DATA),
    Change("`chat_template_args`, where lengths of rows are measured", OTHER_DATA),
    Change(
        "`curriculum.sampler`, `curriculum.gates`",
        "does not fit; `recover.skip_curriculum=true` forgets their results",
    ),
    Change("`total_train_steps` below the steps done", "does not fit"),
    Change(
        "`seed`, `train_dataset.shuffle`, `train_dataset.drop_last`, `train_dataset.batch_size`",
        "the data go on with the next epoch, except where the batch size alone changes nothing of an epoch",
    ),
    Change(
        "`gconfig`, `workflow`, `agent`, `reward`, `environments`, `chat_template_args`, "
        "`rollout.mask_env_responses`, `rollout.trajectory_strategy`",
        "finished answers that were not trained on yet are generated again",
    ),
    Change("`rollout.max_head_offpolicyness`", "finished answers that are too old for it are generated again"),
    Change("`valid_dataset`, `evaluator`", "holds from the next evaluation on"),
    Change("the number of trainer ranks", "the same results up to rounding"),
    Change("any other key", "holds from the resumed step on"),
)


def tokenizer_problems(config: "BaseExperimentConfig", here: HostInfo, directory: RunDirectory) -> Iterator[Problem]:
    """Compares the files of the tokenizer with those in the checkpoint, where they are copied to."""
    checkpoint, path = _checkpoint(config, directory), config.tokenizer_path
    if checkpoint is None or not path:
        return
    folder = here.directory / Path(path).expanduser()
    if not folder.is_dir():
        file = find_model_config(path, here)[1]
        folder = Path(file).parent
    was, now = ({name for name in TOKENIZER_FILES if (place / name).is_file()} for place in (checkpoint, folder))
    both = sorted(was & now)
    others = [name for name in both if _content(checkpoint / name) != _content(folder / name)]
    if not others and (both or not was or not now):
        return
    trained = "actor" if hasattr(config, "actor") else "model"
    which = f"{others[0]} differs" if others else f"it has {', '.join(sorted(now))} instead of {', '.join(sorted(was))}"
    reason = f"{path} is another tokenizer than that of the checkpoint of step {step_of(checkpoint.name)} ({which})"
    remedy = f"keep that one, or start a new run from those weights with {trained}.path={checkpoint}"
    yield Problem("tokenizer_path", f"{reason}; {remedy}")


def _content(file: Path) -> Any:
    content = file.read_bytes()
    if file.name == TOKENIZER:
        try:
            return {name: value for name, value in json.loads(content).items() if name not in FORMATTING}
        except (ValueError, AttributeError):
            pass  # compared as bytes
    return content


def other_row_problems(
    loaded: "Loaded", config: "BaseExperimentConfig", here: HostInfo, directory: RunDirectory
) -> Iterator[Problem]:
    """Compares what is cheap to read: rows of built-in tasks and of small files of JSON lines. Others are compared when
    they are read, before the first step."""
    checkpoint = _checkpoint(config, directory)
    if checkpoint is None or config.recover.skip_dataloader or config.train_dataset.fake is not None:
        return
    before = run_config_values(Path(directory.path))
    template, data = before.get("chat_template_args"), config.train_dataset
    is_measured = data.max_length is not None or data.type != "rl"
    if is_measured and template is not None and template != dict(config.chat_template_args):
        reason = f"is {dict(config.chat_template_args)}, and the rows were measured with {template}"
        yield Problem("chat_template_args", f"{reason}; keep that value, or {KEEP_DATA}")
    was = _saved_digest(checkpoint)
    now = None if was is None else _digest(loaded, here, before)
    if was is not None and now is not None and was != now:
        from areal_like.data.row_table import other_rows_message  # brings numpy

        yield Problem("train_dataset", other_rows_message(was, now))


def _checkpoint(config: "BaseExperimentConfig", directory: RunDirectory) -> Path | None:
    """From which a run that trains resumes."""
    return None if only_evaluates(config) else resumed_checkpoint(directory)


def _saved_digest(checkpoint: Path) -> str | None:
    """Of the training rows, in a checkpoint of this version."""
    from areal_like.process.frames import read_header  # brings orjson

    for name, known in SAVED_DIGEST.items():
        file = checkpoint / RESUME / name
        if file.is_file():
            try:
                state = json.loads(file.read_bytes()) if file.suffix == ".json" else read_header(file)
                return str(state["digest"]).partition("/")[0] if state["format"] == known else None
            except (ValueError, KeyError, TypeError):
                return None  # a start compares the file with its hash
    return None


def _digest(loaded: "Loaded", host: HostInfo, before: dict[str, Any]) -> str | None:
    """Of the training rows as they are now, where it is cheap to know."""
    config, name = loaded.config, task_name(loaded.config)
    environments = getattr(config, "environments", None)
    if (environments is not None and environments.train) or (name is not None and name not in TASKS):
        return None
    if config.train_dataset.path in ("", name):
        if all(before.get(key) == loaded.values.get(key) for key in ROWS):
            return None  # the same rows at each start
    else:
        files = training_files(loaded, host)
        is_cheap = bool(files) and all(file.suffix == JSON_LINES for file in files)
        if not is_cheap or sum(file.stat().st_size for file in files) > LARGEST_COMPARED_BYTES:
            return None
    from areal_like.data.checked_rows import digest_of  # these bring numpy
    from areal_like.data.datasets import find_rows
    from areal_like.data.user_code import SearchFolders

    try:
        found = next(find_rows(config, SearchFolders(loaded.folder, host.directory)))
        return digest_of(found.section, found.dataset, found.raw)
    except (OSError, ValueError, TypeError, ConfigError):
        return None  # the checks of the data say why
