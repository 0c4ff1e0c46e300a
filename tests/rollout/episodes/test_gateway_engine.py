"""The real client of OpenAI over the embedded engine: what is trained on stands in the engine's own log."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import torch

from areal_like.data.tokenizer import TextTokenizer
from areal_like.rollout.episodes.episode import Episode, WorkerTools
from areal_like.rollout.episodes.gateway.session import AgentSession, SessionRules
from areal_like.rollout.episodes.generation_client import GenerationClient
from tests.support.agents import SAMPLING, user
from tests.support.chat_models import chat_folder
from tests.support.embedded_servers import Client, over_http, published, until
from tests.support.episode_parts import Rewards
from tests.support.ring_parts import lease
from tests.support.tiny_models import EOS_ID, tiny_qwen3

SHORT = (
    "{% for m in messages %}{{ m['content'] }}{% for c in m.tool_calls or [] %}{{ c.function.name }}("
    "{% for key, value in c.function.arguments | dictsort %}{{ key }}={{ value | tojson }}{% endfor %})"
    "{% endfor %}<eos>{% endfor %}"
)
UPDATE = "/control/update_weights"
LENGTH = 12
FIXED_LENGTH = {**SAMPLING, "temperature": 1.0, "min_new_tokens": LENGTH, "max_new_tokens": LENGTH, "max_tokens": 64}


class EngineLog:
    """What an engine has sampled, as it says itself: prompt, ids, versions and log-probabilities of each answer. The
    engine makes no step while `holds`."""

    def __init__(self, client: Client) -> None:
        self.engine = client.engine
        self.answers: list[tuple[list[int], Any]] = []
        self.holds: Callable[[], bool] = lambda: False
        prompts: dict[int, list[int]] = {}
        step, submit = self.engine.step, self.engine.submit

        def logged_submit(group: Any) -> int:
            number = submit(group)
            prompts[number] = list(group.prompt)
            return number

        def logged_step() -> Any:
            if self.holds():
                time.sleep(0.001)
                return []
            finished = step()
            self.answers += [(prompts[group.number], sample) for group in finished for sample in group.samples]
            return finished

        self.engine.step, self.engine.submit = logged_step, logged_submit  # type: ignore[method-assign]

    def hold_both(self) -> Callable[[], bool]:
        """Two answers are open, and have some tokens."""
        first = self.engine.counts.steps + 4
        self.holds = lambda: self.engine.counts.steps >= first and self.engine.num_running == 2
        return self.holds

    def check(self, samples: list[Any]) -> None:
        """Every token that was sampled is trained on once, after the ids that the engine was given, with its version
        and log-probability; and no other."""
        logged = Counter(
            (*map(tuple, (prompt, each.token_ids, each.versions)), tuple(round(value, 5) for value in each.logprobs))
            for prompt, each in self.answers
        )
        trained: Counter[Any] = Counter()
        for each in samples:
            assert each.problem() is None
            ids, mask = each.token_ids.tolist(), each.loss_mask.tolist()
            starts = [at for at in range(len(ids)) if mask[at] and not mask[at - 1]]
            for start in starts:
                end = next((at for at in range(start, len(ids)) if not mask[at]), len(ids))
                span = slice(start, end)
                logprobs = tuple(round(value, 5) for value in each.logprobs[span].tolist())
                trained[tuple(ids[:start]), tuple(ids[span]), tuple(each.versions[span].tolist()), logprobs] += 1
        assert trained == logged and set(logged.values()) == {1}

    def check_versions(self, seeds: dict[int, int]) -> int:
        """The model of its version gives each answer the log-probabilities that the engine has reported. Returns of
        how many: those of one version."""
        whole = [(prompt, each) for prompt, each in self.answers if len(set(each.versions)) == 1]
        for prompt, each in whole:
            model = tiny_qwen3(seeds[each.versions[0]])
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *each.token_ids]])).logits[0, len(prompt) - 1 : -1]
            logits[:, EOS_ID] = -torch.inf  # of a fixed length
            expected = logits.log_softmax(-1).gather(1, torch.tensor(each.token_ids)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(each.logprobs), expected, atol=1e-4, rtol=0)
        return len(whole)


@asynccontextmanager
async def agent_session(engine: Client, folder: Path) -> AsyncIterator[tuple[AgentSession, openai.AsyncOpenAI]]:
    source = GenerationClient(engine.caller, 60.0, 0, _no_other)
    tools = WorkerTools(TextTokenizer(folder), source, Rewards(), False, False, 0.5)
    one = lease(0, engine.address, n=1, row_hash="0") | {"sampling": FIXED_LENGTH}
    session = Episode(tools, one).agent_session(SessionRules())
    endpoint = await tools.gateway.open(session)
    async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.key, max_retries=0) as policy:
        yield session, policy
    await tools.gateway.end(endpoint)
    await tools.gateway.close()
    await source.close()


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
        async with agent_session(engine, folder) as (session, policy):
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
        async with agent_session(engine, folder) as (session, policy):
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
        async with agent_session(engine, folder) as (session, policy):
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


async def _no_other(_: str, gone: str) -> str:
    raise AssertionError(f"the server at {gone} is gone")
