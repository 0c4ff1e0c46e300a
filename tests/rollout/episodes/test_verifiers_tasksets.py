"""Tasksets of verifiers 0.4: played by its agents, trained on as sampled, with rewards as its own runner gives them."""

import json
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.problems import ConfigError
from areal_like.data.tasks.verifiers import EnvironmentRows
from areal_like.data.verifiers.environment_process import loaded_process
from areal_like.rollout.episodes.rewards.base import RewardError
from areal_like.rollout.trajectory import pack_group, unpack_group
from tests.rollout.episodes.test_verifiers import in_order, scored
from tests.support.chat_service import KEY, Reply, chat_service
from tests.support.verifiers_environments import PlayedGroup, Player, by_own_runner, package, played

pytestmark = [pytest.mark.xdist_group("verifiers"), pytest.mark.timeout(900)]


def test_a_taskset_is_played_by_its_agent_and_scored_as_by_its_own_runner(tmp_path: Path) -> None:
    """A reward function that fails is an error of its episode."""
    hosted = package("v1_sums", first=20)
    rows = EnvironmentRows(hosted).rows("train")
    begin = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "21+1="}]
    assert len(rows) == 4 and (rows[1]["prompt"], rows[1]["task"]["answer"]) == (begin, "022")
    texts = ["020", "020", "022", "022!"]

    async def script(player: Player) -> None:
        group = await player.play(rows[1], *texts, n=2)
        player.engine.check_exact(group)
        decode = player.engine.tokenizer.decode
        trained = {decode(each.token_ids[each.loss_mask.nonzero()[0]].tolist()) for each in group}
        assert trained == {"020022", "020022!"}
        assert sum(int(each.loss_mask.sum()) for each in group) == sum(
            len(sample["token_ids"]) for _, sample in player.engine.log
        )
        assert {decode(each.token_ids.tolist()) for each in group} == {
            f"<system> be brief<user> 21+1=<assistant> 020<user> sure?<assistant> {last}" for last in ("022", "022!")
        }
        assert sorted(each.reward or 0.0 for each in group) == [0.0, 2.0]
        (own,) = await by_own_runner(player.engine, [PlayedGroup(hosted, rows[1], texts, 2)])
        assert scored(group) == in_order(own)
        with pytest.raises(RewardError, match="TaskError: task SumTask scoring: RuntimeError: nobody can read it"):
            await player.play(rows[1], "022", "broken")
        assert player.counts == {"environment_starts": 1}

    played(hosted, script, tmp_path)


def hint(body: dict[str, Any]) -> Reply:
    choice = {"index": 0, "message": {"role": "assistant", "content": "021"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    facts = {"id": "1", "object": "chat.completion", "created": 1, "model": body["model"]}
    return Reply(body=json.dumps({**facts, "choices": [choice], "usage": usage}).encode())


def test_of_several_agents_the_policy_plays_one_and_apis_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their answers are part of its prompt, and not trained on."""
    monkeypatch.setenv("HELPER_KEY", KEY)
    asks_once = {"harness": {"id": "tests/v1-helped", "question": ""}}
    with chat_service(hint) as (service, address):
        client = {"type": "eval", "base_url": address, "api_key_var": "HELPER_KEY"}
        helper = {**asks_once, "client": client, "model": "helping"}
        hosted = package("v1_helped", first=20, solver=asks_once, helper=helper)
        rows = EnvironmentRows(hosted).rows("train")

        async def script(player: Player) -> None:
            group = await player.play(rows[0], "021", "022", n=2)
            player.engine.check_exact(group)
            decode = player.engine.tokenizer.decode
            assert {decode(each.token_ids.tolist()) for each in group} == {
                f"<system> be brief<user> 20+1=021?<assistant> {last}" for last in ("021", "022")
            }
            assert {decode(each.token_ids[each.loss_mask.nonzero()[0]].tolist()) for each in group} == {"021", "022"}
            assert sorted(each.reward or 0.0 for each in group) == [0.0, 2.0]

        played(hosted, script, tmp_path)
    assert [body["model"] for body in service.asked] == ["helping"] * 2
    of_api = {"client": client, "model": "helping"}
    with pytest.raises(ConfigError, match="the policy plays none of its agents solver, helper"):
        loaded_process(package("v1_helped", solver=of_api, helper=of_api)).close()


ONCE = {"harness": {"id": "tests/v1-checked", "question": ""}}


def test_of_several_agents_of_the_policy_each_is_trained_on_with_its_own_reward(tmp_path: Path) -> None:
    """Ids, masks and log-probabilities are those of its own calls, rewards as its own runner gives them. An episode is
    one conversation, in which each agent is compared with the same one of the other episodes."""
    hosted = package("v1_checked", first=20, solver=ONCE, checker=ONCE)
    rows = EnvironmentRows(hosted).rows("train")
    texts = ["021", "021", "020", "021"]

    async def script(player: Player) -> None:
        group = await player.play(rows[0], *texts, n=2)
        player.engine.check_exact(group)
        decode = player.engine.tokenizer.decode
        asked = "<system> be brief<user> 20+1="
        assert [(each.agent, decode(each.token_ids.tolist())) for each in group] == [
            ("solver", f"{asked}<assistant> 021"),
            ("checker", f"{asked}021?<assistant> 021"),
            ("solver", f"{asked}<assistant> 020"),
            ("checker", f"{asked}020?<assistant> 021"),
        ]
        assert [decode(each.token_ids[each.loss_mask.nonzero()[0]].tolist()) for each in group] == texts
        assert [each.reward for each in group] == [2.5, 2.5, 0.0, 2.0]
        assert [each.conversation for each in group] == [0, 0, 1, 1]
        assert {each.metrics["turns"] for each in group} == {2}
        (own,) = await by_own_runner(player.engine, [PlayedGroup(hosted, rows[0], texts[:2], 1)])
        assert scored(group[:2]) == in_order(own)
        (own,) = await by_own_runner(player.engine, [PlayedGroup(hosted, rows[0], texts[2:], 1)])
        assert scored(group[2:]) == in_order(own)
        facts, blob = pack_group(group)
        assert [each.agent for each in unpack_group(facts, blob)] == ["solver", "checker"] * 2
        with pytest.raises(RewardError, match="nobody can read it"):
            await player.play(rows[0], "021", "broken")

    played(hosted, script, tmp_path, max_concurrent=1)


def test_each_run_of_an_agent_that_runs_several_times_is_trained_on(tmp_path: Path) -> None:
    hosted = package("v1_checked", first=20, checks=2, solver=ONCE, checker=ONCE)
    rows = EnvironmentRows(hosted).rows("train")
    texts = ["021", "020", "021"]

    async def script(player: Player) -> None:
        group = await player.play(rows[0], *texts)
        player.engine.check_exact(group)
        assert [(each.agent, each.run, each.reward) for each in group] == [
            ("solver", 0, 2.0),
            ("checker", 0, 0.0),
            ("checker", 1, 2.0),
        ]
        (own,) = await by_own_runner(player.engine, [PlayedGroup(hosted, rows[0], texts, 1)])
        assert scored(group) == in_order(own)

    played(hosted, script, tmp_path)


NEVER_ENDS = {"harness": {"id": "tests/v1-checked", "question": "", "ends": False}}


@pytest.mark.parametrize(
    "args",
    [{"gives_up": True}, {"timeout": {"episode": 8.0}}],
    ids=["raises", "late"],
)
def test_what_an_agent_has_answered_before_its_episode_fails_in_the_middle_of_its_run_fails_too(
    tmp_path: Path, args: dict[str, Any]
) -> None:
    hosted = package("v1_checked", first=20, solver=ONCE, checker=NEVER_ENDS, **args)
    rows = EnvironmentRows(hosted).rows("train")

    async def script(player: Player) -> None:
        group = await player.play(rows[0], "021", "020")
        player.engine.check_exact(group)
        assert [(each.agent, each.reward) for each in group] == [("solver", -1.0), ("checker", -1.0)]
        decode = player.engine.tokenizer.decode
        assert [decode(each.token_ids[each.loss_mask.nonzero()[0]].tolist()) for each in group] == ["021", "020"]

    played(hosted, script, tmp_path, failed_reward=-1.0)


def test_an_agent_of_the_policy_that_its_environment_does_not_train_is_not(tmp_path: Path) -> None:
    asks_once = {"harness": {"id": "tests/v1-helped", "question": ""}}
    hosted = package("v1_helped", first=20, solver=asks_once, helper=asks_once)
    rows = EnvironmentRows(hosted).rows("train")

    async def script(player: Player) -> None:
        (sample,) = await player.play(rows[0], "020", "021")
        player.engine.check_exact([sample])
        decode = player.engine.tokenizer.decode
        assert (sample.agent, sample.reward) == ("solver", 2.0)
        assert decode(sample.token_ids.tolist()) == "<system> be brief<user> 20+1=020?<assistant> 021"

    played(hosted, script, tmp_path)


@pytest.mark.slow
def test_the_agent_of_verifiers_that_only_talks_plays_a_taskset_too(tmp_path: Path) -> None:
    """It is a program of its own, whose packages uv installs."""
    hosted = package("v1_sums", agent={"harness": {"id": "null"}})
    rows = EnvironmentRows(hosted).rows("train")

    async def script(player: Player) -> None:
        group = await player.play(rows[0], "011", "012", n=2)
        player.engine.check_exact(group)
        assert sorted(each.reward or 0.0 for each in group) == [0.0, 2.0]

    played(hosted, script, tmp_path)


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"agent": {"harness": {"id": "bash"}}}, "its agent bash runs programs of the model; say where in args.agent."),
        ({"frist": 2}, "frist"),
    ],
)
def test_an_agent_with_a_shell_and_unknown_arguments_are_refused(args: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        loaded_process(package("v1_sums", **args)).close()
