"""Requests that clients repeat: each call gets an answer of its own, and none is sampled twice or trained on unseen."""

import asyncio
from typing import Any

import aiohttp
import openai
import pytest

from areal_like.rollout.episodes.generation_client import GenerationError
from tests.support.agents import AgentClient, SampledTexts, open_session, user
from tests.support.chat_models import chat_tokenizer

CHAT, RETRY = "/v1/chat/completions", "X-Stainless-Retry-Count"
ONE: list[Any] = [user("1+1")]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return chat_tokenizer(tmp_path_factory.mktemp("retries") / "plain")


def at_gateway(engine: SampledTexts, agent: Any) -> list[Any]:
    """What is trained on of an agent that is given an address and its session."""

    async def run() -> Any:
        async with open_session(engine) as (session, endpoint):
            await agent(endpoint, session)
        return session.trajectory(1.0)

    samples: list[Any] = asyncio.run(run())
    engine.check_exact(samples)
    assert len({each.metrics["turns"] for each in samples}) == 1
    return samples


async def ask(policy: openai.AsyncOpenAI) -> str:
    return (await policy.chat.completions.create(model="any", messages=ONE)).choices[0].message.content or ""


def requests_of(session: Any) -> list[Any]:
    return [each for pending in session.pending._answers for each in pending.requests]


async def until(holds: Any) -> None:
    while not holds():
        await asyncio.sleep(0.001)


def test_a_client_that_times_out_and_retries_gets_the_one_answer_that_is_sampled(plain):
    engine = SampledTexts(plain, "1")

    async def agent(endpoint: Any, session: Any) -> None:
        engine.gate.clear()
        async with openai.AsyncOpenAI(
            base_url=endpoint.base_url, api_key=endpoint.key, timeout=0.4, max_retries=8
        ) as policy:
            asked = asyncio.create_task(ask(policy))
            await until(lambda: len(requests_of(session)) == 3)
            engine.gate.set()
            assert await asked == "1"
        assert [each.retry for each in requests_of(session)][:3] == [0, 1, 2]

    (sample,) = at_gateway(engine, agent)
    assert len(engine.log) == len(engine.groups) == 1
    assert (sample.metrics["turns"], sample.metrics["undelivered_calls"]) == (1, 0)


def test_the_retry_of_a_call_that_failed_is_sampled_and_never_given_the_answer_of_an_equal_call(plain):
    """As best-of-n agents ask."""
    engine = SampledTexts(plain, "1", GenerationError("no server"), "2", "3", GenerationError("no server"), "4")

    async def agent(endpoint: Any, session: Any) -> None:
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.key, max_retries=2) as policy:
            assert [await ask(policy) for _ in range(4)] == ["1", "2", "3", "4"]
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.key) as policy:
            engine.texts += ["5", GenerationError("no server"), "6", "7"]
            assert sorted(await asyncio.gather(*(ask(policy) for _ in range(3)))) == ["5", "6", "7"]

    samples = at_gateway(engine, agent)
    assert len(samples) == len(engine.log) == 7 and samples[0].metrics["undelivered_calls"] == 0


def test_of_equal_calls_that_are_open_the_one_that_was_cut_is_repeated(plain):
    engine = SampledTexts(plain, "1", "2", "3")

    async def agent(endpoint: Any, session: Any) -> None:
        engine.gate.clear()
        async with aiohttp.ClientSession() as http:
            client = AgentClient(endpoint, http)
            calls = []
            for _ in range(3):
                calls.append(asyncio.create_task(client.post(CHAT, {"messages": ONE})))
                await until(lambda: len(engine.groups) == len(calls))
            calls[1].cancel()
            cut = requests_of(session)[1]
            await until(lambda: cut.is_closed)
            calls[1] = asyncio.create_task(client.post(CHAT, {"messages": ONE}, **{RETRY: "1"}))
            await until(lambda: len(requests_of(session)) == 4)
            engine.gate.set()
            answers = [answer["choices"][0]["message"]["content"] for _, answer in await asyncio.gather(*calls)]
        assert answers == ["1", "2", "3"]

    samples = at_gateway(engine, agent)
    assert len(samples) == 3 and samples[0].metrics["undelivered_calls"] == 0


def test_an_answer_that_was_sent_is_sent_again_only_where_its_connection_has_closed_or_its_key_is_the_same(plain):
    engine = SampledTexts(plain, *"1234")

    async def agent(endpoint: Any, session: Any) -> None:
        async def get(http: aiohttp.ClientSession, **headers: str) -> Any:
            return (await AgentClient(endpoint, http).post(CHAT, {"messages": ONE}, **headers))[1]["id"]

        async with aiohttp.ClientSession() as http:
            first = await get(http)
            assert await get(http, **{RETRY: "1"}) != first, "the connection is open: the client has its answer"
            keyed = await get(http, **{"Idempotency-Key": "a"})
            assert await get(http, **{"Idempotency-Key": "a", RETRY: "1"}) == keyed
            assert await get(http, **{"Idempotency-Key": "b", RETRY: "1"}) not in (first, keyed)
        await until(lambda: all(each.is_closed for each in requests_of(session)))
        async with aiohttp.ClientSession() as http:
            assert await get(http, **{RETRY: "1"}) in (first, keyed), "it may have been lost on its way"

    assert len(at_gateway(engine, agent)) == len(engine.log) == 4
