"""Log-probabilities of clients' prompts: computed in parts, after the run's requests, and in turn."""

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from areal_like.serving.engines.embedded.background_tasks import BackgroundTasks
from areal_like.serving.engines.embedded.core import model_runner
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.engines.embedded.openai_api import parse_request
from areal_like.serving.requests import CLIENT_PRIORITY, BadRequest, GroupRequest, Sampling, StepSlot
from tests.serving.engines.embedded.test_chunked_prefill import LONG, MAKERS, prompt
from tests.serving.engines.embedded.test_engine import expected_logprobs
from tests.support.embedded_servers import Client, group, over_http, published, until
from tests.support.tiny_models import VOCAB, tiny_qwen3, write_tiny_model

TOKENS = "/inference/v1/generate"


def body(ids: tuple[int, ...], **how: Any) -> dict[str, Any]:
    return {"token_ids": ids, "sampling_params": {"max_tokens": 1, "prompt_logprobs": 1, **how}}


def ended(parts: Generator[None, None, Any]) -> tuple[int, Any]:
    """Number of parts, and the result."""
    count = 0
    while True:
        try:
            next(parts)
        except StopIteration as end:
            return count, end.value
        count += 1


@pytest.mark.parametrize("family", MAKERS)
def test_chunks_give_the_same_numbers_as_whole_prompts(family: str) -> None:
    model, engine = MAKERS[family](**LONG), LLMEngine(MAKERS[family](**LONG), prefill_chunk=64)
    for length, parts in ((300, 5), (130, 3), (129, 2), (66, 2), (65, 1), (2, 1), (1, 0)):
        ids = prompt(length)
        count, (logprobs, top_logprobs) = ended(engine.prompt_logprobs(GroupRequest("g", ids), 3))
        assert count == parts and len(top_logprobs) == length - 1 and all(len(one) == 3 for one in top_logprobs)
        torch.testing.assert_close(
            torch.tensor(logprobs), expected_logprobs(model, ids[:1], ids[1:]), atol=1e-5, rtol=0
        )


def test_chunks_are_short_for_a_large_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runner, "MAX_CHUNK_LOGITS", 10 * VOCAB)
    assert ended(LLMEngine(tiny_qwen3(**LONG)).prompt_logprobs(GroupRequest("g", prompt(101)), 0))[0] == 10


def test_new_weights_restart_the_scoring_of_a_prompt() -> None:
    engine, new, ids = LLMEngine(tiny_qwen3(**LONG), prefill_chunk=64), tiny_qwen3(1, **LONG), prompt(200)
    parts = engine.prompt_logprobs(GroupRequest("g", ids), 0)
    next(parts)
    engine.update_weights(dict(new.named_parameters()), 1)
    count, (logprobs, _) = ended(parts)
    assert count == 4
    torch.testing.assert_close(torch.tensor(logprobs), expected_logprobs(new, ids[:1], ids[1:]), atol=1e-5, rtol=0)


def test_background_chunks_follow_the_runs_and_have_a_time_share() -> None:
    engine = LLMEngine(tiny_qwen3(), max_running_requests=2)
    background, done = BackgroundTasks(engine), []

    def parts() -> Generator[None, None, str]:
        for _ in range(4):
            done.append(1)
            yield
        return "scored"

    def is_due() -> bool:
        return background.is_due

    future: Future[str] = Future()
    background.add(parts, future)
    assert is_due()
    background.run_part()
    how = Sampling(max_new_tokens=40, min_new_tokens=40)
    engine.submit(GroupRequest("client", (5, 9), 1, 0, how, priority=CLIENT_PRIORITY))
    background.due_at_s = 0.0
    assert is_due(), "only clients wait"
    engine.submit(GroupRequest("run", (5, 9), 1, 0, how))
    assert not is_due(), "a group of the run waits for its start"
    engine.step()
    assert is_due()
    background.run_part()
    assert not is_due(), "a part was computed just now"
    engine.counts.busy_s = background.due_at_s
    assert is_due()
    engine.submit(GroupRequest("step", (5, 9), 1, 0, how, StepSlot("s", 0, 1)))
    assert not is_due(), "a synchronous step is complete and has priority"
    while engine.has_work:
        engine.step()
    while not future.done():
        assert is_due()
        background.run_part()
    assert (len(done), future.result(), is_due()) == (4, "scored", False)


def test_failed_and_cancelled_background_tasks_affect_no_other() -> None:
    background = BackgroundTasks(LLMEngine(tiny_qwen3()))

    def endless() -> Generator[None, None, None]:
        while True:
            yield

    def failing() -> Generator[None, None, None]:
        yield
        raise ValueError("failed")

    def refusing() -> Generator[None, None, None]:
        raise KeyError("not loaded")

    begins: list[Callable[[], Generator[None, None, Any]]] = [endless, failing, refusing, lambda: refusing()]
    futures: list[Future[Any]] = [Future() for _ in begins]
    for begin, future in zip(begins, futures, strict=True):
        background.add(begin, future)
    background.run_part()
    futures[0].cancel()
    for _ in range(5):
        background.run_part()
    assert not background.is_due
    assert [type(future.exception()) for future in futures[1:]] == [ValueError, KeyError, KeyError]


def test_a_group_of_the_run_waits_for_at_most_one_chunk_of_a_clients_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runner, "MAX_CHUNK_LOGITS", 8 * VOCAB)

    async def test(client: Client) -> None:
        await client.call("POST", "/control/update_weights", published(tmp_path, 1, tiny_qwen3(1)))
        thread, engine = client.embedded.async_engine.thread, client.engine
        parts = [0]
        posted: list[int] = []
        started: list[int] = []
        run_part, post, submit = thread.background.run_part, thread.post, engine.submit

        def counted() -> None:
            parts[0] += 1
            run_part()

        def noted(command: Callable[[], None]) -> None:
            if len(posted) == len(started) and parts[0] > 4:
                posted.append(parts[0])
            post(command)

        def entered(one: GroupRequest) -> int:
            if one.priority == 0 and posted:
                started.append(parts[0])
            return submit(one)

        monkeypatch.setattr(thread.background, "run_part", counted)
        monkeypatch.setattr(engine, "submit", entered)
        clients = [asyncio.create_task(client.open("POST", TOKENS, body(prompt(60, seed)))) for seed in range(8)]
        await until(lambda: parts[0] > 4)
        monkeypatch.setattr(thread, "post", noted)
        await client.generate(group("run"))
        assert started and started[0] - posted[0] <= 1
        assert {status for status, _ in await asyncio.gather(*clients)} == {200}

    over_http(test)


def test_scoring_a_prompt_waits_for_its_turn_and_for_the_end_of_a_pause() -> None:
    async def test(client: Client) -> None:
        openai_serving = client.embedded.openai
        openai_serving.turns._capacity = 1

        async def scored(seed: int) -> int:
            ids = prompt(30, seed)
            await openai_serving.prompt_logprobs(Request(), GroupRequest(str(seed), ids), 1)  # type: ignore[arg-type]
            return seed

        await client.call("POST", "/control/pause", {"mode": "keep"})
        tasks = [asyncio.create_task(scored(seed)) for seed in range(3)]
        await until(lambda: openai_serving.turns.running == 1 and openai_serving._scoring.waiting == 2)
        gone = tasks.pop(0)
        gone.cancel()
        await until(lambda: openai_serving._scoring.waiting == 1 and openai_serving.turns.running == 1)
        await client.call("POST", "/control/resume")
        assert sorted(await asyncio.gather(*tasks)) == [1, 2] and client.engine.counts.steps == 0
        assert (openai_serving.turns.running, openai_serving._scoring.running) == (0, 0)

    over_http(test)


class Request:
    """Of a connected client."""

    class transport:
        is_closing = staticmethod(lambda: False)


def test_log_probabilities_of_too_many_tokens_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_request.MAX_SCORED_TOKENS == 1 << 18
    monkeypatch.setattr(parse_request, "MAX_SCORED_TOKENS", 8)
    parse_request.check_num_scored([GroupRequest("a", (5, 9), 2), GroupRequest("b", (5,) * 4)])
    with pytest.raises(BadRequest, match=r"9 tokens .* at most 8"):
        parse_request.check_num_scored([GroupRequest("a", (5, 9), 2), GroupRequest("b", (5,) * 5)])

    async def test(client: Client) -> None:
        for length, status in ((8, 200), (9, 400)):
            actual, response = await client.open("POST", TOKENS, body((5,) * length, n=2))
            assert actual == status, response
            plain = body((5,) * length, prompt_logprobs=None)
            assert (await client.open("POST", TOKENS, plain))[0] == 200
        for n, status in ((2, 200), (3, 400)):
            scored = {"prompt": [5, 9, 13], "n": n, "max_tokens": 0, "echo": True, "logprobs": 1}
            assert (await client.open("POST", "/v1/completions", scored))[0] == status
            assert (await client.open("POST", "/v1/completions", scored | {"logprobs": None}))[0] == 200

    over_http(test, write_tiny_model(tmp_path / "model"))
