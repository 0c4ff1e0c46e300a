"""Processes of environments of verifiers: they die, hang, are cancelled and replaced, and have limits."""

import asyncio
from pathlib import Path

import pytest

from areal_like.data.tasks.verifiers import EnvironmentRows
from areal_like.rollout.episodes.rewards.base import RewardError
from areal_like.rollout.episodes.text_environments.process import EnvironmentFault
from areal_like.rollout.episodes.verifiers import seat
from tests.support.verifiers_environments import Player, package, played

pytestmark = [pytest.mark.xdist_group("verifiers"), pytest.mark.timeout(900)]


def test_a_process_that_dies_is_replaced_and_its_memory_is_limited(tmp_path: Path) -> None:
    hosted = package("v0_turns")
    row = EnvironmentRows(hosted).rows("train")[2]

    async def script(player: Player) -> None:
        guesses = [["3", "9", "4", "5"], ["9", "3", "8", "5"]]
        groups = await asyncio.gather(*(player.play(row, *texts) for texts in guesses))
        assert [group[-1].reward for group in groups] == [1.0, 1.0]
        prompts = [len(prompt) for prompt, _ in player.engine.log]
        assert prompts == [*sorted(prompts[:4]), *sorted(prompts[4:])], "one group after the other"
        start = len(player.engine.log)
        group = await player.play(row, "3", "5", "9", "5", n=2)
        assert [each.reward for each in group if each.reward is not None] == [1.0, 1.0]
        lengths = [len(prompt) for prompt, _ in player.engine.log[start:]]
        assert lengths == [*sorted(lengths[:2]), *sorted(lengths[2:])] and lengths[1] > lengths[2], "also of a group"
        with pytest.raises(RewardError, match="MemoryError"):
            await player.play(row, "fill")
        assert player.counts == {"environment_starts": 1}
        with pytest.raises(seat.EnvironmentEnded, match="its process ended with exit code 9; its log says more"):
            await player.play(row, "die")
        assert (await player.play(row, "5"))[0].reward == 1.0
        assert player.counts == {"environment_starts": 2, "environment_failures": 1}
        times = player.episodes[-1].times.totals(with_other=True)
        assert 0 < times["tools_s"] < times["other_s"], "the start of a process is no time of its tools"

    played(hosted, script, tmp_path, max_concurrent=1, max_memory_gb=3.0)


@pytest.mark.slow
def test_a_group_that_takes_too_long_is_stopped_and_a_process_that_hangs_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seat, "CANCEL_LIMIT_S", 1.0)
    journal = tmp_path / "journal"
    hosted = package("v0_turns", journal=str(journal))
    row = EnvironmentRows(hosted).rows("train")[2]
    late = "environments.timeout_s: the group took longer than 8 s"

    async def script(player: Player) -> None:
        with pytest.raises(EnvironmentFault, match=late):
            await player.play(row, "wait", "5", n=2)
        assert (await player.play(row, "5"))[0].reward == 1.0
        assert sorted(journal.read_text().split()) == ["None", "is_found", "is_found"], "also what was stopped"
        assert player.counts == {"environment_starts": 1, "environment_failures": 1, "environment_timeouts": 1}
        playing = asyncio.create_task(player.play(row, "wait"))
        while not player.engine.groups[3:]:
            await asyncio.sleep(0.01)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        with pytest.raises(EnvironmentFault, match=late):
            await player.play(row, "hang")
        with pytest.raises(seat.EnvironmentEnded, match="ended with"):
            await player.play(row, "5")
        assert (await player.play(row))[0].reward == 1.0 and player.engine.texts == []
        assert player.counts["environment_starts"] == 2 and player.counts["environment_timeouts"] == 2

    played(hosted, script, tmp_path, timeout_s=8.0)


@pytest.mark.slow
def test_several_processes_play_at_the_same_time(tmp_path: Path) -> None:
    hosted = package("v0_turns")
    row = EnvironmentRows(hosted).rows("train")[2]

    async def script(player: Player) -> None:
        used = set[str]()
        while len(used) < 2:  # until the second one has started
            groups = await asyncio.gather(*(player.play(row, "pid", "5") for _ in range(3)))
            shown = [player.engine.tokenizer.decode(group[0].token_ids.tolist()) for group in groups]
            used |= {text.partition("process ")[2][:7] for text in shown if "process " in text}
        assert player.counts == {"environment_starts": 2}

    played(hosted, script, tmp_path, processes=2)
