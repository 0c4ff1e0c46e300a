"""Workflows by name: built-in ones and the user's own."""

import inspect
from typing import Any

from areal_like.config.sections.agent import AgentConfig
from areal_like.data.user_code import SearchFolders, check_call, config_error, load_named, make_object
from areal_like.rollout.episodes.workflows.agent import Agent
from areal_like.rollout.episodes.workflows.base import Workflow
from areal_like.rollout.episodes.workflows.text_environment import PlayEnvironment, plays
from areal_like.rollout.episodes.workflows.tools import Tools

__all__ = ["AGENT", "Workflow", "make_workflow", "plays", "workflow_of"]

DEFAULT, AGENT = "single_turn", "agent"
PLAYED = PlayEnvironment()


def workflow_of(row: dict[str, Any], workflow: Workflow) -> Workflow:
    """That of the experiment; rows of text environments are played, whatever others need."""
    return PLAYED if plays(row) and not isinstance(workflow, PlayEnvironment) else workflow


def make_workflow(
    name: str | None, args: dict[str, Any], places: SearchFolders, agent: AgentConfig | None = None
) -> Workflow:
    """Creates the workflow of this name with its arguments; `agent` are those of the workflow of that name."""
    name = name or DEFAULT
    if name == AGENT:
        assert agent is not None
        return Agent.configured(agent, places)
    kind = load_named("workflow", "workflow.name", name, places)
    if isinstance(kind, type) and issubclass(kind, Tools) and "tools" in args:
        args = {**args, "tools": kind.load_functions(args["tools"], places)}
    workflow: Workflow = make_object("workflow.name", "workflow.args", name, kind, args)
    if not inspect.iscoroutinefunction(getattr(workflow, "run", None)):
        raise config_error(
            "workflow.name", f"{name} is not a workflow: it has no method `async def run(self, episode, row)`"
        )
    check_call("workflow.name", name, workflow, "run", "episode", "row")
    return workflow
