"""Runs of the agents of one episode at the gateway: kept apart by the header of their calls, under the same limits."""

from typing import Any

import pytest

from areal_like.rollout.episodes.gateway.gateway import RUN_HEADER
from areal_like.rollout.episodes.gateway.session import SessionRules
from tests.rollout.episodes.test_gateway import CHAT, at_gateway
from tests.support.agents import AgentClient, SampledTexts, user
from tests.support.chat_models import chat_tokenizer


@pytest.fixture
def engine(tmp_path) -> SampledTexts:
    return SampledTexts(chat_tokenizer(tmp_path / "model"), "one", "two", "three")


def test_a_run_that_repeats_the_messages_of_another_one_is_a_sequence_of_its_own(engine):
    talk = [user("1"), {"role": "assistant", "content": "one"}, user("2")]

    async def agent(client: AgentClient, _: Any) -> None:
        await client.post(CHAT, {"messages": talk[:1]}, **{RUN_HEADER: "a"})
        await client.post(CHAT, {"messages": talk}, **{RUN_HEADER: "b"})
        await client.post(CHAT, {"messages": talk}, **{RUN_HEADER: "a"})

    session = at_gateway(engine, agent, SessionRules(has_runs=True))
    assert list(session.runs) == ["a", "b"] and session.trajectory(1.0) == []
    (first,), (second,) = (run.trajectory(1.0) for run in session.runs.values())
    engine.check_exact([first, second])
    decode = engine.tokenizer.decode
    assert [decode(each.token_ids[each.loss_mask.nonzero()[0]].tolist()) for each in (first, second)] == [
        "onethree",
        "two",
    ]
    assert len({group["seed"] for group in engine.groups}) == 3, "equal prompts have different answers"


def test_the_calls_of_an_episode_are_limited_over_all_its_runs(engine):
    async def agent(client: AgentClient, _: Any) -> None:
        statuses = [(await client.post(CHAT, {"messages": [user("1")]}, **{RUN_HEADER: run}))[0] for run in "aba"]
        assert statuses == [200, 200, 400]

    session = at_gateway(engine, agent, SessionRules(max_calls=2, has_runs=True))
    assert session.runs["a"].refusal.startswith("agent.max_calls: ") and session.refusal == ""


def test_the_calls_of_an_agent_program_are_one_run_whatever_it_says(engine):
    async def agent(client: AgentClient, _: Any) -> None:
        for run in "ab":
            assert (await client.post(CHAT, {"messages": [user(run)]}, **{RUN_HEADER: run}))[0] == 200

    session = at_gateway(engine, agent)
    assert not session.runs
    engine.check_exact(session.trajectory(1.0))
