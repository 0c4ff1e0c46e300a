"""Limits of requests, and faults of one request that must not affect others."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from areal_like.process.errors import HttpError
from areal_like.serving.client_queue import MAX_WAITING, ClientQueue
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.engines.embedded.core.running_batch import RunningBatch
from areal_like.serving.engines.embedded.core.waiting_queue import QueuedGroup
from areal_like.serving.requests import CLIENT_PRIORITY, BadRequest, GroupRequest, Sampling, parse_group
from tests.support.embedded_servers import Client, group, over_http, published, until
from tests.support.tiny_models import VOCAB, tiny_qwen3

HUGE = 1 << 63
STOPS: tuple[Any, ...] = ("x" * 2000, ["x"] * 500, [[]], {"x": 1})
TOKENS = "/inference/v1/generate"


@pytest.mark.parametrize(
    "changes",
    [
        *({"prompt": [token]} for token in (-1, VOCAB, HUGE, 1.0, True, "5", None, [5])),
        {"prompt": [5] * 64},
        *({"n": n} for n in (0, -1, HUGE, 1 << 17, 1.5, True, "2", [1])),
        *({"seed": seed} for seed in (-1, 1 << 64, 1.5, "x")),
        *({"priority": priority} for priority in (HUGE, -HUGE, 1 << 61, 0.5)),
        *({"deadline_s": seconds} for seconds in (-1, 0, 1e300, "soon")),
        {"id": "x" * 1000},
        {"id": ["x"]},
        {"order": {"key": "s", "place": 0, "of": HUGE}},
        {"order": {"key": ["s"], "place": 0, "of": 1}},
        *({"sampling": sampling} for sampling in ([1], "hot", 5)),
        *({"sampling": {"temperature": value}} for value in (1e-50, 1e-4, -0.5, 1e300, "1", True)),
        *({"sampling": {"repetition_penalty": value}} for value in (1e-50, 0, 1e300)),
        *({"sampling": {"frequency_penalty": value}} for value in (-3, 1e300)),
        *({"sampling": {key: HUGE}} for key in ("min_new_tokens", "max_new_tokens", "max_tokens", "top_k")),
        *({"sampling": {"stop": value}} for value in STOPS),
        *({"sampling": {"stop_token_ids": value}} for value in (5, [HUGE], [5] * 2000, "5", [None])),
    ],
)
def test_unusable_values_are_refused_with_a_short_message(changes: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_group({"id": "g", "prompt": [5], **changes}, VOCAB, 64)
    assert len(str(refused.value)) < 400
    assert parse_group({"id": "g", "prompt": [5]}, VOCAB, 64).prompt == (5,)


def test_lengths_above_the_context_are_reduced_to_it() -> None:
    body = {"id": "g", "prompt": [5], "sampling": {"min_new_tokens": 1 << 30, "max_new_tokens": 1 << 30}}
    assert parse_group(body, VOCAB, 64).sampling.min_new_tokens == 64


def test_requests_with_huge_numbers_are_refused() -> None:
    async def test(client: Client) -> None:
        for sampling in (
            {"min_tokens": HUGE},
            {"n": HUGE},
            {"n": 129},
            {"temperature": 1e-50},
            {"repetition_penalty": 1e-50},
        ):
            status, response = await client.open("POST", TOKENS, {"token_ids": [5, 9], "sampling_params": sampling})
            assert status == 400 and next(iter(sampling)) in response["error"]["message"]
        status, _ = await client.open("POST", TOKENS, {"token_ids": [5, 9], "sampling_params": {"max_tokens": 2}})
        assert status == 200

    over_http(test)


def tokens(line: dict[str, Any]) -> list[list[int]]:
    return [sample["token_ids"] for sample in line["samples"]]


def test_a_group_that_cannot_start_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that no check foresees, raised in the engine's thread by the numbers of one group."""
    add = RunningBatch.add

    def failing(self: RunningBatch, queued: QueuedGroup, samples: Any) -> Any:
        rows = add(self, queued, samples)
        if queued.group.sampling.frequency_penalty == 1.25:
            raise OverflowError("Python int too large to convert to C long")
        return rows

    monkeypatch.setattr(RunningBatch, "add", failing)

    async def test(client: Client) -> None:
        await client.call("POST", "/control/update_weights", published(tmp_path, 1, tiny_qwen3(1)))
        alone = await client.generate(group("a"), group("c", top_k=5))
        together = await client.generate(group("a"), group("b", frequency_penalty=1.25), group("c", top_k=5))
        assert together["b"]["error"].startswith("OverflowError: ")
        assert all(tokens(together[name]) == tokens(alone[name]) for name in "ac")
        assert not client.engine.has_work and not client.engine.num_waiting

    over_http(test)


def test_sampling_that_leaves_no_distribution_is_no_fault_of_the_weights() -> None:
    engine = LLMEngine(tiny_qwen3(), max_running_requests=8)
    good = GroupRequest("a", (5, 9), sampling=Sampling(frequency_penalty=0.5, max_new_tokens=6))
    bad = GroupRequest("b", (5, 9), sampling=Sampling(repetition_penalty=1e-50, max_new_tokens=6))  # past every check
    (alone,) = engine.generate([good])
    for one in (good, bad):
        engine.submit(one)
    finished: dict[str, Any] = {}
    while engine.has_work:
        finished.update((one.id, one) for one in engine.step())
    assert (finished["b"].error or "").startswith("sampling: this request's penalties")
    assert [one.token_ids for one in finished["a"].samples] == [one.token_ids for one in alone.samples]
    assert engine.counts.recomputed == 0


def test_clients_have_a_share_during_a_run_and_everything_otherwise(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        openai_serving = client.embedded.openai
        assert openai_serving.turns.limit == client.engine.max_running == 64

        def many(n: int) -> dict[str, Any]:
            return {"token_ids": [5, 9], "sampling_params": {"max_tokens": 2, "n": n}}

        assert (await client.open("POST", TOKENS, many(17)))[0] == 200
        await client.call("POST", "/control/update_weights", published(tmp_path, 1, tiny_qwen3(1)))
        await client.generate(group("a"))
        assert openai_serving.turns.limit == 16
        status, response = await client.open("POST", TOKENS, many(17))
        assert status == 400 and "ask for at most 16 (prompts" in response["error"]["message"]
        assert (await client.open("POST", TOKENS, many(16)))[0] == 200

    over_http(test)


def test_client_turns_are_bounded_and_in_order() -> None:
    async def main() -> None:
        turns = ClientQueue(4, lambda: False)
        order: list[str] = []
        gone = {"c": False}

        async def one(name: str, count: int, held: asyncio.Event) -> None:
            async with turns.take(count, lambda: gone.get(name, False)):
                order.append(name)
                await held.wait()

        holds = {name: asyncio.Event() for name in "abcd"}
        tasks = {name: asyncio.create_task(one(name, 3 if name < "d" else 99, holds[name])) for name in "abcd"}
        await until(lambda: turns.waiting == 105)
        assert order == ["a"] and turns.running == 3
        gone["c"] = True
        with pytest.raises(ConnectionResetError):
            await tasks["c"]
        for count, status in ((MAX_WAITING, 429), (1 << 20, 400)):
            with pytest.raises(HttpError) as refused:
                async with turns.take(count, lambda: False):
                    raise AssertionError
            assert refused.value.status == status
        for name in "abd":
            holds[name].set()
            await tasks[name]
        assert order == ["a", "b", "d"] and (turns.running, turns.waiting) == (0, 0)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_request_above_the_clients_share_is_refused_even_after_waiting() -> None:
    async def main() -> None:
        is_used, end = False, asyncio.Event()
        turns = ClientQueue(64, lambda: is_used)

        async def one(count: int) -> None:
            async with turns.take(count, lambda: False):
                await end.wait()

        first, second, third = (asyncio.create_task(one(count)) for count in (64, 17, 16))
        await until(lambda: turns.running == 64 and turns.waiting == 33)
        is_used = True
        end.set()
        with pytest.raises(HttpError, match=r"17 sequences are too many .* ask for at most 16") as refused:
            await second
        assert refused.value.status == 400
        await asyncio.gather(first, third)
        with pytest.raises(HttpError, match="4096 sequences are too many"):
            await one(4096)
        assert (turns.running, turns.waiting) == (0, 0)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_client_never_has_priority_over_the_run() -> None:
    async def test(client: Client) -> None:
        for priority in ("first", 0.5):
            body = {"token_ids": [5], "sampling_params": {"max_tokens": 1}, "priority": priority}
            assert (await client.open("POST", TOKENS, body))[0] == 400
        await client.call("POST", "/control/pause", {"mode": "keep"})
        body = {"token_ids": [5], "sampling_params": {"max_tokens": 1}, "priority": -HUGE}
        asking = asyncio.create_task(client.open("POST", TOKENS, body))
        await until(lambda: client.engine.num_waiting == 1)
        assert [queued.group.priority for queued in client.engine.waiting] == [CLIENT_PRIORITY - (1 << 31)]
        await client.call("POST", "/control/resume")
        assert (await asking)[0] == 200

    over_http(test)
