"""The contract of every engine: one suite, run against a real server of each."""

import asyncio
from typing import Any

import aiohttp
import pytest
import torch

from areal_like.models.characters import CHARACTERS
from areal_like.rollout.episodes.generation_client import GenerationError
from areal_like.serving.control_protocol import CLIENT_PATHS, QUERY_PATHS
from tests.support.engine_answers import (
    PARITY,
    PENALIZES_ANSWER_ALONE,
    UNSEEDED,
    WITHOUT_CLIENTS,
    largest_gap,
    length_of,
)
from tests.support.engines import CONTEXT, PROBE, VOCAB, LiveServer, logits_of, model
from tests.support.server_session import ServerSession, group, in_session
from tests.support.tiny_models import EOS_ID

GREEDY: dict[str, Any] = {"temperature": 1.0, "greedy": True}


def text_of(tokens: list[int]) -> str:
    return "".join(CHARACTERS[token - 2] for token in tokens if token > EOS_ID)


def test_a_group_has_the_requested_answers_each_with_its_finish(server: LiveServer) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        request = [group(f"g{n}", n=n, seed=n, max_new_tokens=9) for n in (1, 2, 5)]
        for response, samples in zip(request, await one.generate(*request), strict=True):
            assert len(samples) == response["n"]
            for sample in samples:
                tokens = sample["token_ids"]
                assert set(sample) == {"token_ids", "logprobs", "versions", "finish"}
                assert len(tokens) == len(sample["logprobs"]) == len(sample["versions"])
                assert EOS_ID not in tokens[:-1] and all(0 <= token < VOCAB for token in tokens)
                ends = "stop" if tokens[-1] == EOS_ID else "length"
                assert sample["finish"] == ends and (ends == "stop" or len(tokens) == 9)
                assert set(sample["versions"]) == {server.version}

    in_session(server, test)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probabilities_match_transformers(server: LiveServer, temperature: float) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        prompts = [PROBE[:length] * 3 for length in (1, 2, 5, 8)] + [PROBE * 20]
        request = [
            group(str(number), prompt, n=2, seed=number, temperature=temperature, max_new_tokens=48)
            for number, prompt in enumerate(prompts)
        ]
        seeds = {server.version: 1}
        for response, samples in zip(request, await one.generate(*request), strict=True):
            assert (
                max(largest_gap(response["prompt"], sample, seeds, temperature=temperature) for sample in samples)
                <= PARITY
            )

    in_session(server, test)


def test_a_seed_repeats_its_answers_and_samples_differ(server: LiveServer) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        first = await one.tokens(n=4, seed=11, max_new_tokens=24)
        assert len({tuple(tokens) for tokens in first}) == 4
        if server.engine in UNSEEDED:
            return
        assert await one.tokens(n=4, seed=11, max_new_tokens=24) == first
        others = await one.tokens(n=4, seed=1200, max_new_tokens=24)
        assert not {tuple(tokens) for tokens in first} & {tuple(tokens) for tokens in others}

    in_session(server, test)


@pytest.mark.parametrize("how", [GREEDY, {"temperature": 0.0}], ids=["greedy", "temperature 0"])
def test_greedy_answers_are_the_likeliest_tokens(server: LiveServer, how: dict[str, Any]) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        (samples,) = await one.generate(group("g", **how, max_new_tokens=20))
        tokens = samples[0]["token_ids"]
        for at in range(len(tokens)):
            assert int(logits_of(model(1), [*PROBE[:5], *tokens[:at]])[-1].argmax()) == tokens[at]
        assert largest_gap(PROBE[:5], samples[0], {server.version: 1}) <= PARITY

    in_session(server, test)


def test_a_stop_token_ends_an_answer_and_is_part_of_it(server: LiveServer) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        (free,) = await one.tokens(**GREEDY, max_new_tokens=20)
        stop = free[6]
        (samples,) = await one.generate(group("g", **GREEDY, max_new_tokens=20, stop_token_ids=[stop]))
        assert samples[0]["token_ids"] == free[: free.index(stop) + 1]
        assert samples[0]["finish"] == "stop" and len(samples[0]["logprobs"]) == len(samples[0]["token_ids"])

    in_session(server, test)


def test_a_stop_text_ends_an_answer_with_the_token_that_completes_it(server: LiveServer) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        (free,) = await one.tokens(**GREEDY, max_new_tokens=24)
        stop = text_of(free)[7:10]
        length = next(length for length in range(1, len(free) + 1) if stop in text_of(free[:length]))
        (samples,) = await one.generate(group("g", **GREEDY, max_new_tokens=24, stop=["no such text", stop]))
        assert samples[0]["token_ids"] == free[:length]
        assert samples[0]["finish"] == "stop" and len(samples[0]["logprobs"]) == length

    in_session(server, test)


def test_an_answer_does_not_end_before_its_minimum_length(server: LiveServer) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        (free,) = await one.tokens(**GREEDY, max_new_tokens=12)
        stops = sorted(set(free[:3]))
        short, long = await one.generate(
            group("short", **GREEDY, max_new_tokens=12, stop_token_ids=stops),
            group("long", n=4, max_new_tokens=12, min_new_tokens=7, stop_token_ids=stops),
        )
        assert len(short[0]["token_ids"]) == 1
        for sample in long:
            assert len(sample["token_ids"]) >= 7
            assert not set(sample["token_ids"][:6]) & {*stops, EOS_ID}

    in_session(server, test)


def test_prompt_and_answer_together_are_limited(server: LiveServer) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        whole = dict[str, Any](min_new_tokens=4, max_new_tokens=40)
        short, full = await one.generate(
            group("short", PROBE, **whole, max_tokens=12),
            group("full", PROBE[:4] * ((CONTEXT - 12) // 4), seed=5, **{**whole, "min_new_tokens": 12}),
        )
        assert (len(short[0]["token_ids"]), short[0]["finish"]) == (4, "length")
        assert (len(full[0]["token_ids"]), full[0]["finish"]) == (12, "length")

    in_session(server, test)


@pytest.mark.parametrize("how", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=str)
def test_truncation_leaves_only_the_likeliest_token_at_its_end(server: LiveServer, how: dict[str, Any]) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        (greedy,) = await one.tokens(**GREEDY, max_new_tokens=20)
        assert await one.tokens(n=3, max_new_tokens=20, **how) == [greedy] * 3

    in_session(server, test)


@pytest.mark.parametrize("how", [{"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.3}], ids=str)
def test_truncation_keeps_the_likely_tokens_and_renormalizes_them(server: LiveServer, how: dict[str, Any]) -> None:
    """Log-probabilities are those among the tokens that are left, from which the answer was drawn."""

    async def test(one: ServerSession) -> None:
        await one.serve(1)
        (samples,) = await one.generate(group("g", n=6, max_new_tokens=30, temperature=2.0, **how))
        right = total = 0
        for sample in samples:
            logits = logits_of(model(1), [*PROBE[:5], *sample["token_ids"]])[4:-1] / 2.0
            for at, token in enumerate(sample["token_ids"]):
                left = _left(logits[at].softmax(-1), **how)
                expected = logits[at].masked_fill(~left, -torch.inf).log_softmax(-1)[token]
                right += abs(sample["logprobs"][at] - float(expected)) <= PARITY
                total += 1
        assert right >= 0.98 * total, (right, total)  # a token on the very edge may fall either way

    in_session(server, test)


def _left(chances: torch.Tensor, top_k: int = VOCAB, top_p: float = 1.0, min_p: float = 0.0) -> torch.Tensor:
    """The likeliest tokens that reach `top_p` together, and so on."""
    ordered, order = chances.sort(descending=True)
    kept = (ordered.cumsum(-1) - ordered < top_p) & (torch.arange(len(ordered)) < top_k)
    kept &= ordered >= min_p * ordered[0]
    return torch.zeros_like(kept).scatter(0, order, kept)


@pytest.mark.parametrize("how", [{"frequency_penalty": 1.5}, {"repetition_penalty": 1.7}], ids=str)
def test_penalties_are_computed_as_documented(server: LiveServer, how: dict[str, Any]) -> None:
    """The likeliest token after the penalty, and its log-probability after it."""

    async def test(one: ServerSession) -> None:
        await one.serve(1)
        (free,) = await one.tokens(**GREEDY, max_new_tokens=24)
        (samples,) = await one.generate(group("g", **GREEDY, max_new_tokens=24, **how))
        tokens, logprobs = samples[0]["token_ids"], samples[0]["logprobs"]
        assert tokens != free
        for at, token in enumerate(tokens):
            prompt = [] if server.engine in PENALIZES_ANSWER_ALONE else PROBE[:5]
            logits = _penalized(logits_of(model(1), [*PROBE[:5], *tokens[:at]])[-1], prompt, tokens[:at], **how)
            assert logits[token] >= logits.max() - 1e-4
            assert logprobs[at] == pytest.approx(float(logits.log_softmax(-1)[token]), abs=PARITY)

    in_session(server, test)


def _penalized(
    logits: torch.Tensor,
    prompt: list[int],
    answer: list[int],
    frequency_penalty: float = 0,
    repetition_penalty: float = 1,
) -> torch.Tensor:
    for token in {*prompt, *answer} if repetition_penalty != 1 else ():
        logits[token] *= repetition_penalty if logits[token] < 0 else 1 / repetition_penalty
    for token in answer:
        logits[token] -= frequency_penalty
    return logits


BAD: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "too long": ({"prompt": PROBE * (CONTEXT // len(PROBE))}, ("prompt", str(CONTEXT))),
    "no room": ({"prompt": PROBE, "max_tokens": 8}, ("gconfig.max_tokens",)),
    "no such token": ({"prompt": [5, VOCAB]}, ("prompt", str(VOCAB))),
    "negative token": ({"prompt": [5, -1]}, ("prompt", "-1")),
    "no such stop token": ({"stop_token_ids": [1000]}, ("gconfig.stop_token_ids", "1000")),
    "unknown parameter": ({"beams": 4}, ("gconfig.beams",)),
    "bad temperature": ({"temperature": -1.0}, ("gconfig.temperature",)),
    "bad top_p": ({"top_p": 0.0}, ("gconfig.top_p",)),
    "no answer": ({"n": 0}, ("n",)),
}


def test_an_invalid_group_gets_one_clear_error_for_itself_alone(server: LiveServer) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        bad = [group(name, **response) for name, (response, _) in BAD.items()]
        empty = {**group("empty"), "prompt": []}
        good = group("good", n=2, max_new_tokens=6)
        *errors, nothing, samples = await one.outcomes(*bad, empty, good)
        assert len(samples) == 2
        assert isinstance(nothing, GenerationError) and "prompt" in str(nothing)
        for (name, (_, words)), error in zip(BAD.items(), errors, strict=True):
            assert isinstance(error, GenerationError), (name, error)
            assert all(word in str(error) for word in words), (name, error)
        assert len((await one.generate(group("after")))[0]) == 1

    in_session(server, test)


def test_health_and_statistics_report_the_server(server: LiveServer) -> None:
    async def test(one: ServerSession) -> None:
        await one.serve(1)
        health = await one.get("/health")
        assert health["run_id"] == server.run.run_id and health["version"] == server.version
        assert (health["status"], health["engine"]) == ("ok", server.engine)
        assert health["engine_version"] and health["model"] == str(server.model_folder)
        idle = await one.until(lambda results: results["running"] == results["waiting"] == 0)
        assert idle["version"] == server.version
        exact = {"max_new_tokens": length_of(server), "min_new_tokens": length_of(server)}
        request = [asyncio.ensure_future(one.tokens(n=8, seed=1, **exact))]
        assert (await one.until(lambda results: results["running"] > 0))["running"] <= 8
        assert len((await asyncio.gather(*request))[0]) == 8

    in_session(server, test)


def test_clients_may_ask_what_is_served_and_generate_nothing_during_training(server: LiveServer) -> None:
    if server.engine in WITHOUT_CLIENTS:
        pytest.skip(f"{server.engine} has no routes for clients")

    async def test(one: ServerSession) -> None:
        await one.serve(1)
        async with aiohttp.ClientSession() as session:
            for path in QUERY_PATHS:
                # SGLang has no route of this name; its answer is passed on.
                absent = server.engine == "sglang" and path == "/version"
                async with session.get(f"http://{one.address}{path}") as response:
                    assert response.status == (404 if absent else 200) and await response.read(), path
            for path in CLIENT_PATHS:
                async with session.post(f"http://{one.address}{path}", json={"prompt": "ab"}) as response:
                    assert response.status == 401, path

    in_session(server, test)
