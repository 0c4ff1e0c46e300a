"""Environments of the real package verifiers: their rows, rewards, errors and processes."""

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from areal_like.config.sections.agent import AgentConfig
from areal_like.config.sections.environments import EnvironmentsConfig
from areal_like.data.tasks.verifiers import EnvironmentRows
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.verifiers.environment_process import HostedPackage
from areal_like.models import model_folder
from areal_like.rollout.episodes.conversation import ConversationRules
from areal_like.rollout.episodes.episode import Episode, WorkerTools
from areal_like.rollout.episodes.workflows.verifiers import VerifiersEnvironment
from areal_like.rollout.trajectory import Trajectory
from tests.support.agents import SAMPLING, SampledTexts
from tests.support.chat_models import PLAIN
from tests.support.episode_parts import Rewards
from tests.support.ring_parts import lease
from tests.support.verifiers_environments import package

pytestmark = [pytest.mark.xdist_group("verifiers"), pytest.mark.timeout(900)]

SETTINGS = EnvironmentsConfig(max_memory_gb=20.0)  # type: ignore[call-arg]
Play = Callable[[dict[str, Any]], Awaitable[list[Trajectory]]]


def player(environment: VerifiersEnvironment, engine: SampledTexts, n: int) -> Play:
    """Each call plays one row with a group of `n`, of which half may fail."""
    rules = ConversationRules()
    tools = WorkerTools(
        *(engine.tokenizer, engine, Rewards(), False, False, 0.5), conversation_rules=rules, gateway=engine.gateway
    )

    async def play(row: dict[str, Any]) -> list[Trajectory]:
        episode = Episode(tools, lease(0, "here", n=n, row_hash="0") | {"sampling": SAMPLING})
        return await environment.run(episode, row) or []

    return play


def played(
    package: HostedPackage, script: Callable[[Play, SampledTexts], Awaitable[None]], folder: Path, n: int
) -> None:
    """One process for the rows and all groups of a test."""

    async def run() -> None:
        shutil.copytree(model_folder("builtin:tiny-tools"), folder / "model")
        (folder / "model" / "chat_template.jinja").write_text(PLAIN)
        engine = SampledTexts(TextTokenizer(folder / "model"))
        environment = VerifiersEnvironment(package, SETTINGS, AgentConfig())  # type: ignore[call-arg]
        try:
            await script(player(environment, engine, n), engine)
        finally:
            await environment.close()
            await engine.gateway.close()

    asyncio.run(run())


def test_a_group_of_one_turn_is_scored_by_its_rubric(tmp_path: Path) -> None:
    """Rewards compare the episodes of a group; a rubric that fails, a process that dies, each is an error of the group
    alone."""
    hosted = package("v0_single", first=20, group_weight=0.5)
    rows, held_out = EnvironmentRows(hosted).rows("train"), EnvironmentRows(hosted).rows("test")
    assert (len(rows), len(held_out)) == (16, 4)
    assert rows[0] == {"prompt": "20+0=", "answer": "020", "example_id": 0}

    async def script(play: Play, engine: SampledTexts) -> None:
        engine.texts = ["020", "00000"]
        group = await play(rows[0])
        by_text = {engine.tokenizer.decode(each.token_ids.tolist()).split("=")[1]: each for each in group}
        assert by_text["020"].reward == 1.0
        assert by_text["00000"].reward == 0.5
        assert by_text["020"].rewards == {"right": 1, "length": 3, "longest": 0, "num_turns": 1}
        engine.check_exact(group)
        engine.texts = ["020", "broken"]
        with pytest.raises(Exception, match="length: RuntimeError: this rubric cannot read it"):
            await play(rows[0])
        assert engine.texts == []

    played(hosted, script, tmp_path, n=2)


def test_tools_with_state_are_turns_of_one_conversation(tmp_path: Path) -> None:
    hosted = package("v0_tools")
    rows = EnvironmentRows(hosted).rows("train")
    assert rows[0]["prompt"] == [{"role": "user", "content": "count to 3"}]

    async def script(play: Play, engine: SampledTexts) -> None:
        engine.texts = [call(number=2), call(number=-1), call(number=1), "done"]
        group = await play(rows[0])
        engine.check_exact(group)
        assert {each.reward for each in group} == {1.0}
        assert {each.metrics["turns"] for each in group} == {4.0}
        assert sum(int(np.count_nonzero(each.loss_mask)) for each in group) == sum(
            len(s["token_ids"]) for _, s in engine.log
        )
        shown = engine.tokenizer.decode(group[-1].token_ids.tolist())
        assert "now 2" in shown and "only up" in shown and "now 3" in shown

    played(hosted, script, tmp_path, n=1)


def call(**arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': 'add', 'arguments': arguments})}</tool_call>"
