"""Environments of the real package verifiers: their rows, and rewards as its own runner gives them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from areal_like.data.tasks.verifiers import EnvironmentRows
from areal_like.rollout.episodes.text_environments.process import EnvironmentFault
from areal_like.rollout.trajectory import Trajectory
from tests.support.verifiers_environments import PlayedGroup, Player, by_own_runner, package, played

pytestmark = [pytest.mark.xdist_group("verifiers"), pytest.mark.timeout(900)]


def scored(group: list[Trajectory]) -> list[dict[str, Any]]:
    return in_order([{"reward": each.reward, "metrics": each.rewards} for each in group])


def in_order(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(results, key=lambda each: (each["reward"] or 0.0, sorted(each["metrics"].items())))


def test_a_group_of_one_turn_is_scored_by_its_rubric(tmp_path: Path) -> None:
    """Rewards compare the episodes of a group; a rubric that fails is an error of the group alone."""
    hosted = package("v0_single", first=20, group_weight=0.5)
    rows, held_out = EnvironmentRows(hosted).rows("train"), EnvironmentRows(hosted).rows("test")
    assert (len(rows), len(held_out)) == (16, 4)
    assert rows[0] == {"prompt": "20+0=", "answer": "020", "example_id": 0}

    async def script(player: Player) -> None:
        group = await player.play(rows[0], "020", "00000", n=2)
        decode = player.engine.tokenizer.decode
        by_text = {decode(each.token_ids.tolist()).split("=")[1]: each for each in group}
        assert by_text["020"].reward == 1.0
        assert by_text["00000"].reward == 0.5
        assert by_text["020"].rewards == {"right": 1, "length": 3, "longest": 0, "num_turns": 1}
        player.engine.check_exact(group)
        for text, fault in (
            ("broken", "length: RuntimeError: this rubric cannot read it"),
            ("none", "length: TypeErr"),
        ):
            with pytest.raises(EnvironmentFault, match=fault):
                await player.play(rows[0], "020", text, n=2)
        odd = await player.play(rows[0], "020", "0000nan", n=2)
        assert [each["reward"] for each in scored(odd)] == [None, 1.0], "NaN is no reward of its episode"
        assert player.engine.texts == []

    played(hosted, script, tmp_path)


def test_tools_with_state_are_turns_of_one_conversation(tmp_path: Path) -> None:
    hosted = package("v0_tools")
    rows = EnvironmentRows(hosted).rows("train")
    assert rows[0]["prompt"] == [{"role": "user", "content": "count to 3"}]

    async def script(player: Player) -> None:
        group = await player.play(rows[0], call(number=2), call(number=-1), call(number=1), "done")
        player.engine.check_exact(group)
        assert {each.reward for each in group} == {1.0}
        assert {each.metrics["turns"] for each in group} == {4.0}
        assert sum(int(np.count_nonzero(each.loss_mask)) for each in group) == sum(
            len(s["token_ids"]) for _, s in player.engine.log
        )
        shown = player.engine.tokenizer.decode(group[-1].token_ids.tolist())
        assert "now 2" in shown and "only up" in shown and "now 3" in shown

    played(hosted, script, tmp_path)


def call(**arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': 'add', 'arguments': arguments})}</tool_call>"


def test_several_turns_and_a_group_of_environments_are_scored_as_by_their_own_runner(tmp_path: Path) -> None:
    """Each step has ids and log-probabilities. An episode with an error is compared with the others, and has no reward;
    one that raised is not. Each is cleaned up, also where scoring fails, and what does not score gives no reward."""
    journal = tmp_path / "journal"
    hosted = package("v0_turns", journal=str(journal))
    rows = {(each["info"]["env_id"], each["answer"]): each for each in EnvironmentRows(hosted).rows("train")}
    guess, total, unscored = rows["guess", "5"], rows["sum", "011"], rows["unscored", "011"]
    groups = [
        PlayedGroup(hosted, guess, ("3", "9", "5", "5"), 2),
        PlayedGroup(hosted, total, ("011", "012"), 2),
        PlayedGroup(hosted, unscored, ("011",), 1),
        PlayedGroup(hosted, guess, ("error", "5"), 2),
    ]

    async def script(player: Player) -> None:
        plays = [await player.play(each.row, *each.texts, n=each.n) for each in groups]
        for group in plays:
            player.engine.check_exact(group)
        with_error = scored(plays.pop())
        assert [each["reward"] for each in with_error] == [None, 1.0]
        *own, own_with_error = map(in_order, await by_own_runner(player.engine, groups))
        assert [scored(group) for group in plays] == own
        assert with_error[1] == own_with_error[1] and with_error[1]["metrics"]["compared"] == 2.0
        assert own[0][0]["metrics"]["aligned"] > 0 and own[2] == [{"reward": 0.0, "metrics": {}}]

        journal.unlink()
        raised = scored(await player.play(guess, "raise", "5", n=2))
        assert [each["reward"] for each in raised] == [None, 1.0] and raised[1]["metrics"]["compared"] == 1.0
        with pytest.raises(EnvironmentFault, match="unreadable: RuntimeError: nobody can read it"):
            await player.play(guess, "5", "7", "7", "7", "7!", n=2)
        assert sorted(journal.read_text().split()) == ["None", "is_found", "is_found", "max_turns_reached"]
        with pytest.raises(EnvironmentFault, match="length: RuntimeError: this rubric cannot read it"):
            await player.play(total, "011", "broken", n=2)

    played(hosted, script, tmp_path)
