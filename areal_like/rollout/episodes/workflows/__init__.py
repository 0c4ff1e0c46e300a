"""Workflows by name: built-in ones and the user's own."""

import inspect
from typing import Any

from areal_like.data.user_code import (
    SearchFolders,
    check_call,
    config_error,
    is_built_in,
    load_object,
    make_object,
    pick_built_in,
)
from areal_like.rollout.episodes.workflows.base import Workflow
from areal_like.rollout.episodes.workflows.single_turn import SingleTurn

__all__ = ["BUILT_IN", "DEFAULT", "Workflow", "make_workflow"]

DEFAULT = "single_turn"

BUILT_IN: dict[str, Any] = {DEFAULT: SingleTurn}


def make_workflow(name: str | None, args: dict[str, Any], places: SearchFolders) -> Workflow:
    """Creates the workflow of this name with its arguments."""
    name = name or DEFAULT
    kind = (
        pick_built_in("workflow.name", name, BUILT_IN)
        if is_built_in(name)
        else load_object("workflow.name", name, places)
    )
    workflow: Workflow = make_object("workflow.name", "workflow.args", name, kind, args)
    if not inspect.iscoroutinefunction(getattr(workflow, "run", None)):
        raise config_error(
            "workflow.name", f"{name} is not a workflow: it has no method `async def run(self, episode, row)`"
        )
    check_call("workflow.name", name, workflow, "run", "episode", "row")
    return workflow
