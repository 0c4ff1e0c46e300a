"""The real client of OpenAI over the embedded engine: what is trained on stands in the engine's own log."""

import asyncio
from pathlib import Path
from typing import Any

import openai

from tests.support.agents import SAMPLING, user
from tests.support.chat_models import chat_folder
from tests.support.embedded_servers import Client, over_http, published, until
from tests.support.engine_log import EngineLog, agent_session
from tests.support.tiny_models import tiny_qwen3

SHORT = (
    "{% for m in messages %}{{ m['content'] }}{% for c in m.tool_calls or [] %}{{ c.function.name }}("
    "{% for key, value in c.function.arguments | dictsort %}{{ key }}={{ value | tojson }}{% endfor %})"
    "{% endfor %}<eos>{% endfor %}"
)
UPDATE = "/control/update_weights"
LENGTH = 12
FIXED_LENGTH = {**SAMPLING, "temperature": 1.0, "min_new_tokens": LENGTH, "max_new_tokens": LENGTH, "max_tokens": 64}


async def ask(policy: openai.AsyncOpenAI, *messages: Any) -> Any:
    asked: Any = {"model": "m", "messages": messages, "extra_body": {"return_token_ids": True}, "logprobs": True}
    return (await policy.chat.completions.create(**asked)).choices[0]


def test_every_token_of_a_scripted_agent_stands_in_the_engines_log_once_with_its_version(tmp_path: Path) -> None:
    """Its client retries by itself, it calls with `false` among the arguments, forks a sub-agent, holds two calls open
    during an update of the weights, branches, compacts its history, and goes on."""
    folder = chat_folder(tmp_path / "chat", SHORT)

    async def test(engine: Client) -> None:
        await engine.call("POST", UPDATE, published(tmp_path / "weights", 1, tiny_qwen3(1)))
        log = EngineLog(engine)
        async with agent_session(engine, folder, FIXED_LENGTH) as (session, policy):
            log.holds = lambda: True
            retried = asyncio.create_task(ask(policy.with_options(timeout=0.4, max_retries=20), user("1+1")))
            await until(lambda: any(len(each.requests) > 1 for each in session.pending._answers))
            log.holds = lambda: False
            first = await retried
            called = {"name": "add", "arguments": '{"carry": false}'}
            call = {"id": "c", "type": "function", "function": called}
            asked = {"role": "assistant", "content": None, "tool_calls": [call]}
            tool = await ask(policy, user("1"), asked, {"role": "tool", "tool_call_id": "c", "content": "2"})
            holds = log.hold_both()
            held = [
                asyncio.create_task(ask(policy, *messages))
                for messages in ([user("1+1"), first.message, user("2+2")], [user("sub-agent")])
            ]
            await until(holds)
            await engine.call("POST", UPDATE, published(tmp_path / "weights", 2, tiny_qwen3(2)))
            log.holds = lambda: False
            second, sub = await asyncio.gather(*held)
            branch = await ask(policy, user("1+1"), first.message, user("4+4"))
            third = await ask(policy, user("1+1"), first.message, user("2+2"), second.message, user("5"))
            compacted = await ask(policy, user("so far"), second.message, user("6"))
            last = await ask(policy, user("so far"), second.message, user("6"), compacted.message, user("7"))
            assert "add(carry=false)" in session.tokenizer.decode(log.answers[1][0])
        answers = [first, tool, second, sub, branch, third, compacted, last]
        assert sorted(each.token_ids for each in answers) == sorted(each.token_ids for _, each in log.answers)
        samples = session.trajectory(1.0)
        log.check(samples)
        assert [len(set(each.versions)) for _, each in log.answers].count(2) == 2, "those that were open"
        assert log.check_versions({1: 1, 2: 2}) == 6
        metrics = samples[0].metrics
        assert (len(samples), metrics["turns"], metrics["undelivered_calls"]) == (5, 8, 0)
        assert metrics["template_breaks"] == 1, "the history that was compacted"

    over_http(test, folder)


def test_no_call_is_answered_while_a_server_is_paused_and_then_by_the_new_weights(tmp_path: Path) -> None:
    """As where an agent's proxy is not paused during an update: its calls would be answered by the old weights, or
    have the new version without their log-probabilities."""
    folder = chat_folder(tmp_path / "chat", SHORT)

    async def test(engine: Client) -> None:
        await engine.call("POST", UPDATE, published(tmp_path / "weights", 1, tiny_qwen3(1)))
        log = EngineLog(engine)
        async with agent_session(engine, folder, FIXED_LENGTH) as (session, policy):
            before = await ask(policy, user("1+1"))
            await engine.call("POST", "/control/pause")
            asked = [asyncio.create_task(ask(policy, user("1+1"), before.message, user(text))) for text in "23"]
            await until(lambda: len(session.pending._answers) == 3)
            await engine.call("POST", UPDATE, published(tmp_path / "weights", 2, tiny_qwen3(2)))
            assert not any(each.done() for each in asked) and len(log.answers) == 1
            await engine.call("POST", "/control/resume")
            await asyncio.gather(*asked)
        log.check(session.trajectory(1.0))
        assert [set(each.versions) for _, each in log.answers] == [{1}, {2}, {2}]
        assert log.check_versions({1: 1, 2: 2}) == 3

    over_http(test, folder)


def test_an_answer_across_an_update_has_the_version_of_each_token(tmp_path: Path) -> None:
    """Not the one that the server has when the answer ends, read twice or once for all of it."""
    folder = chat_folder(tmp_path / "chat", SHORT)

    async def test(engine: Client) -> None:
        await engine.call("POST", UPDATE, published(tmp_path / "weights", 1, tiny_qwen3(1)))
        log = EngineLog(engine)
        async with agent_session(engine, folder, FIXED_LENGTH) as (session, policy):
            holds = log.hold_both()
            asked = [asyncio.create_task(ask(policy, user(text))) for text in "12"]
            await until(holds)
            await engine.call("POST", UPDATE, published(tmp_path / "weights", 2, tiny_qwen3(2)))
            log.holds = lambda: False
            await asyncio.gather(*asked)
        samples = session.trajectory(1.0)
        log.check(samples)
        for each in samples:
            versions = each.versions[each.loss_mask == 1].tolist()
            assert versions == sorted(versions) and set(versions) == {1, 2}

    over_http(test, folder)
