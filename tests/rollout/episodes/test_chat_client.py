"""Requests to an OpenAI-compatible API: what is sent, what is tried again, and what is an error."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from email.utils import formatdate
from typing import Any

import pytest

from areal_like.process.errors import FinalFailure
from areal_like.process.http_body import MAX_BYTES
from areal_like.rollout.episodes.api import chat_client
from areal_like.rollout.episodes.api.chat_client import ChatClient, seconds_of
from areal_like.rollout.episodes.api.parameters import TakenParameters, parameters
from areal_like.rollout.episodes.api.text_codec import TextCodec, request_of
from areal_like.rollout.episodes.generation_client import GenerationError, LeaseRoute
from tests.support.chat_service import KEY, ChatService, Reply, added, chat_service, completion

CODEC = TextCodec()
GREEDY = {"temperature": 0.7, "greedy": True, "max_new_tokens": 9, "max_tokens": 100, "stop_token_ids": []}


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_client, "FIRST_DELAY_S", 0.001)


def answers(address: str, prompts: Sequence[str] = ("1+2=",), n: int = 1, key: str = KEY, **more: Any) -> list[str]:
    """All prompts at once, `n` answers each."""

    async def ask() -> list[str]:
        client = ChatClient("m", key, **{"max_concurrent": 4, "retries": 2, "timeout_s": 20.0, **more})
        groups = [{"prompt": CODEC.encode_prompt(each), "n": n, "seed": 5, "sampling": GREEDY} for each in prompts]
        try:
            found = await asyncio.gather(*(client.generate(LeaseRoute("l", address), group) for group in groups))
        finally:
            await client.close()
        return [CODEC.decode(sample["token_ids"]) for samples in found for sample in samples]

    return asyncio.run(ask())


def replies(*given: Reply) -> Callable[[dict[str, Any]], Reply]:
    left = list(given)
    return lambda body: left.pop(0) if left else added(body)


def test_each_answer_is_a_request_with_the_model_the_messages_and_its_own_seed() -> None:
    with chat_service() as (service, address):
        assert answers(address, n=2) == ["3", "3"]
    assert [sorted(each) for each in service.asked] == [["max_tokens", "messages", "model", "seed", "temperature"]] * 2
    assert {each["seed"] for each in service.asked} == {5, 6}
    assert service.asked[0] | {"seed": 5} == {
        **{"model": "m", "messages": [{"role": "user", "content": "1+2="}]},
        **{"max_tokens": 9, "temperature": 0.0, "seed": 5},
    }


def test_messages_and_tools_pass_through_the_tokens_of_a_prompt() -> None:
    messages, tools = [{"role": "system", "content": "säe ∑"}, {"role": "user", "content": "?"}], [{"type": "function"}]
    assert request_of(CODEC.encode_prompt(messages)) == {"messages": messages}
    assert request_of(CODEC.encode_prompt(messages, tools)) == {"messages": messages, "tools": tools}
    assert request_of(CODEC.encode_prompt("plain")) == {"messages": [{"role": "user", "content": "plain"}]}


def test_sampling_has_the_names_of_the_api_and_nothing_that_changes_nothing() -> None:
    sampled = {**GREEDY, "greedy": False, "top_p": 0.9, "min_p": 0.1, "stop": ["\n"], "frequency_penalty": 0.0}
    assert parameters(sampled) == {"max_tokens": 9, "temperature": 0.7, "top_p": 0.9, "min_p": 0.1, "stop": ["\n"]}
    assert parameters({**sampled, "greedy": True}) == {"max_tokens": 9, "temperature": 0.0, "stop": ["\n"]}
    reasoning = {"max_completion_tokens": 9, "temperature": 0.0, "reasoning_effort": "low"}
    assert parameters({**GREEDY, "reasoning_effort": "low"}) == reasoning


@pytest.mark.parametrize(
    "failure",
    [
        Reply(429, b"slow down", {"Retry-After": "0.01"}),
        Reply(500, b"oops"),
        Reply(503, b""),
        Reply(200, b"<html>garbage"),
        Reply(200, b'{"choices": []}'),
        Reply(200, b'["no completion"]'),
        Reply(200, b'{"choices": [{"message": {"content": 7}}]}'),
        Reply(200, b"\xff\xfe"),
    ],
    ids=lambda reply: f"{reply.status} {reply.body[:12]!r}",
)
def test_what_may_pass_is_tried_again_and_then_an_error(failure: Reply) -> None:
    with chat_service(replies(failure, failure)) as (service, address):
        assert answers(address) == ["3"]
        assert len(service.asked) == 3
    with chat_service(lambda body: failure) as (service, address):
        with pytest.raises(GenerationError, match=r"no answer of the API after 3 tries \(rollout.request_retries\)"):
            answers(address)
        assert len(service.asked) == 3


def test_an_empty_answer_is_an_answer_and_one_that_was_cut_off_is_marked() -> None:
    with chat_service(replies(completion(""), completion(None), completion("1", "length"))) as (_, address):
        assert [answers(address) for _ in range(2)] == [[""], [""]]
        [sample] = asyncio.run(_samples(address))
    assert sample["finish"] == "length" and len(sample["token_ids"]) == len(sample["versions"]) == 2


async def _samples(address: str) -> list[dict[str, Any]]:
    client = ChatClient("m", KEY, 1, 0, 20.0)
    try:
        group = {"prompt": CODEC.encode("?"), "n": 1, "seed": 0, "sampling": GREEDY}
        return await client.generate(LeaseRoute("l", address), group)
    finally:
        await client.close()


def test_a_refused_request_is_not_repeated_and_a_refused_key_ends_the_run() -> None:
    with chat_service(lambda body: Reply(400, f"no such model, {KEY}".encode())) as (service, address):
        with pytest.raises(GenerationError, match="refuses the request: status 400: no such model, <key>"):
            answers(address)
        assert len(service.asked) == 1
        with pytest.raises(FinalFailure, match=r"rollout.api_key_var: the API at .* refuses the key") as refused:
            answers(address, key="sk-wrong")
    assert "sk-wrong" not in str(refused.value)


def reasoning_model(body: dict[str, Any]) -> Reply:
    """As OpenAI's: it names one parameter at a time."""
    if "max_tokens" in body:
        why = (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
    elif body.get("temperature", 1.0) != 1.0:
        why = f"Unsupported value: 'temperature' does not support {body['temperature']:g} with this model."
    elif "top_p" in body:
        why = "Unsupported parameter: 'top_p' is not supported with this model."
    else:
        return added(body)
    return Reply(400, json.dumps({"error": {"message": "x" * 300 + why}}).encode())


def test_a_model_that_reasons_is_asked_in_its_own_terms_which_are_learned_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with chat_service(reasoning_model) as (service, address):
        assert answers(address, ["1+1=", "2+2=", "3+3="], max_concurrent=1, retries=0) == ["2", "4", "6"]
    assert len(service.asked) == 3 + 2
    assert [sorted(each) for each in service.asked[2:]] == [["max_completion_tokens", "messages", "model", "seed"]] * 3
    (warning,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warning.startswith(
        "gconfig.temperature: the API refuses temperature=0, and answers are drawn at its own def"
    )
    assert "set evaluator.gconfig.temperature=1" in warning


def test_each_value_that_a_model_does_not_take_is_one_warning_unless_it_is_its_default(
    caplog: pytest.LogCaptureFixture,
) -> None:
    taken, refusal = TakenParameters(), "temperature and top_p: unsupported"
    assert taken.learn({"temperature": 1.0, "top_p": 0.9}, refusal) and not taken.learn({"max_tokens": 9}, refusal)
    for temperature in (1.0, 0.3, 0.3, 0.5):
        assert taken.of({"temperature": temperature, "top_p": 0.9, "n": 1}) == {"n": 1}
    said = [each.getMessage().split(", ")[0].rpartition(" ")[2] for each in caplog.records]
    assert said == ["top_p=0.9", "temperature=0.3", "temperature=0.5"]


@pytest.mark.parametrize("why", ["max_tokens is too large: 9. This model supports at most 8", "temperature above 2"])
def test_a_refused_value_stays_an_error(why: str) -> None:
    with chat_service(lambda body: Reply(400, why.encode())) as (service, address):
        with pytest.raises(GenerationError, match=f"refuses the request: status 400: {why}"):
            answers(address)
        assert len(service.asked) == 1


def test_a_limited_rate_makes_all_requests_wait() -> None:
    times: list[float] = []

    def limited(body: dict[str, Any]) -> Reply:
        times.append(time.monotonic())
        return Reply(429, b"", {"Retry-After": "0.3"}) if len(times) == 1 else added(body)

    with chat_service(limited) as (_, address):
        assert answers(address, ["1+1=", "2+2=", "3+3="], max_concurrent=1) == ["2", "4", "6"]
    assert min(times[1:]) - times[0] >= 0.25


def test_a_slow_answer_counts_as_none_and_requests_at_once_are_limited() -> None:
    service: ChatService
    with chat_service() as (service, address):

        def slow(body: dict[str, Any]) -> Reply:
            with service.changed:
                service.changed.wait_for(lambda: service.most_running >= 2, 60)
            return added(body)

        service.answer = slow
        assert answers(address, [f"{each}+1=" for each in range(9)], max_concurrent=2) == [str(e + 1) for e in range(9)]
        assert service.most_running == 2

        def late(body: dict[str, Any]) -> Reply:
            time.sleep(1.0)
            return added(body)

        service.answer = late
        with pytest.raises(GenerationError, match=r"none within 0.05 s \(rollout.request_timeout\)"):
            answers(address, retries=0, timeout_s=0.05)


def test_the_wait_that_a_service_asks_for_is_seconds_or_a_date() -> None:
    assert (seconds_of("2.5"), seconds_of(None), seconds_of("soon"), seconds_of("-1")) == (2.5, 0.0, 0.0, 0.0)
    assert 50 < seconds_of(formatdate(time.time() + 60, usegmt=True)) <= 60


@pytest.mark.parametrize(
    "body",
    [b"\0" * (MAX_BYTES + 1), b"[" * 100_000, b'{"choices": [{"message": {"content": 1}}]}'],
    ids=["long", "nested", "number"],
)
def test_an_answer_that_no_service_should_give_is_an_error(body: bytes) -> None:
    with chat_service(replies(Reply(body=body))) as (_, address):
        assert answers(address) == ["3"]
    with (
        chat_service(lambda asked: Reply(body=body)) as (_, address),
        pytest.raises(GenerationError, match="no answer"),
    ):
        answers(address, retries=0)


def test_half_of_a_character_is_replaced() -> None:
    with chat_service(replies(completion("a\ud83d"))) as (_, address):
        assert answers(address) == ["a?"]
