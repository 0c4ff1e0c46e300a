"""What the first training row lacks for a curriculum or for tools; nothing where the row is known to the run alone."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_like.config.built_in import TASKS
from areal_like.config.experiment import GRPOConfig
from areal_like.config.problems import Problem
from areal_like.config.sections.curriculum import RESULT_COLUMNS
from areal_like.config.task_names import task_name
from launcher.plan.datasets import first_row_of_data
from launcher.plan.host import HostInfo

if TYPE_CHECKING:
    from areal_like.config.loaded import Loaded

POOLS, TOOLS = "difficulty_pool", "tools"
OWN_TEXT = ("result_text", "call_format", "call_start", "call_end")
"""Arguments of who knows which calls the model was trained on, and needs no description of the tools."""


def missing_results(loaded: "Loaded", here: HostInfo) -> Iterator[Problem]:
    config = loaded.config
    if not isinstance(config, GRPOConfig) or config.curriculum.type != POOLS or config.curriculum.from_scratch:
        return
    row = _first_row(loaded, here)
    if row is not None and (missing := [name for name in RESULT_COLUMNS if name not in row]):
        lacks = f"is false, but the training rows have no column {' or '.join(missing)}"
        yield Problem("curriculum.from_scratch", f"{lacks} with results of an earlier run; set it to true")


def undescribed_tools(loaded: "Loaded", here: HostInfo) -> Iterator[Problem]:
    config = loaded.config
    if not isinstance(config, GRPOConfig) or config.workflow.name != TOOLS or {*OWN_TEXT} & {*config.workflow.args}:
        return
    row = _first_row(loaded, here)
    if row is None or not isinstance(row.get("prompt"), str):
        return
    why = "but prompts are texts, so that nothing tells the model of them"
    remedy = "messages (train_dataset.as_chat=true) with a chat template that knows tools do, or the prompts themselves"
    yield Problem("workflow.name", f"is tools, {why}; {remedy}")


def _first_row(loaded: "Loaded", here: HostInfo) -> dict[str, object] | None:
    """Of a built-in task only that its prompt is a text, and that it has no results of an earlier run."""
    config = loaded.config
    if config.environments.train:
        return None
    name = task_name(config)
    if name in TASKS and config.train_dataset.path in ("", name):
        return {"prompt": ""}
    return first_row_of_data(loaded, here)
