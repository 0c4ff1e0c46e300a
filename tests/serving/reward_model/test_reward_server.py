"""Server of a reward model: its scores are those of transformers, also for concurrent requests."""

import asyncio
import mmap
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from areal_like.process import pulse
from areal_like.process.errors import HttpError
from areal_like.process.http import HttpClient, serve
from areal_like.process.identity import CallGuard, Identity, call_headers
from areal_like.serving.reward_model.scorer import MAX_BATCH_TOKENS, Scorer, length_batches, load_scorer
from areal_like.serving.reward_model.server import RewardModelServer
from tests.support.training_runs import MODELS, model_folder

SECRET = "only-in-tests"
WORKER = Identity("episodes", 0)
LENGTHS = [1, 7, 64, 3, 7, 30, 2, 7, 1, 63]


def reward_folder(root: Path, name: str = "qwen3", **changes: Any) -> Path:
    """A random model whose scores differ."""
    torch.manual_seed(5)
    config = type(MODELS[name]).from_dict({**MODELS[name].to_dict(), "num_labels": 1, **changes})
    model: Any = AutoModelForSequenceClassification.from_config(config)
    torch.nn.init.normal_(model.score.weight, std=0.5)
    model.save_pretrained(root / name)
    return root / name


def texts() -> list[list[int]]:
    draw = np.random.default_rng(1)
    return [draw.integers(0, 40, length).tolist() for length in LENGTHS]


def by_transformers(folder: Path, texts: list[list[int]]) -> list[float]:
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return [float(model(torch.tensor([text])).logits[0, 0]) for text in texts]


@pytest.mark.parametrize("name", MODELS)
def test_scores_match_transformers(tmp_path, name):
    """Also of a model whose layers see a window only."""
    folder = reward_folder(tmp_path, name)
    expected = by_transformers(folder, texts())
    scorer = load_scorer(folder, "cpu")
    assert scorer.scores(texts()) == pytest.approx(expected, abs=1e-5)
    assert [scorer.scores([text])[0] for text in texts()] == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 0.1
    assert scorer.scores([]) == []


def test_texts_of_similar_length_are_batched():
    lengths = np.random.default_rng(2).integers(1, 3000, 300).tolist()
    batches = list(length_batches(lengths))
    assert sorted(row for rows in batches for row in rows) == list(range(300))
    for rows in batches:
        widths = [lengths[row] for row in rows]
        assert max(widths) * len(rows) <= MAX_BATCH_TOKENS and max(widths) <= 2 * min(widths)
    assert len(batches) < 60
    assert list(length_batches([5, 5, 5])) == [[0, 1, 2]] and list(length_batches([])) == []
    assert list(length_batches([MAX_BATCH_TOKENS + 1])) == [[0]]


def test_other_models_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"is no reward model: it lacks score\.weight; train one"):
        load_scorer(model_folder(tmp_path, "llama"), "cpu")
    with pytest.raises(ValueError, match="gives one number"):
        load_scorer(reward_folder(tmp_path, "qwen3", num_labels=2), "cpu")


# Over HTTP


Test = Callable[[str, HttpClient], Awaitable[None]]


def over_http(folder: Path, test: Test, change: Callable[[Scorer], None] = lambda scorer: None) -> None:
    async def main() -> None:
        scorer = load_scorer(folder, "cpu")
        change(scorer)
        server = RewardModelServer(scorer, CallGuard(SECRET, 1), "run-1", "mine")
        served = await serve(server.application(), "127.0.0.1")
        try:
            async with HttpClient(WORKER, SECRET) as caller:
                await asyncio.wait_for(test(served.address, caller), 60)
        finally:
            await served.close()

    asyncio.run(main())


def test_a_request_scores_many_texts_in_order(tmp_path):
    folder = reward_folder(tmp_path)

    async def test(address: str, caller: HttpClient) -> None:
        assert await caller.json("POST", address, "/score", []) == []
        several = [caller.json("POST", address, "/score", part) for part in (texts(), texts()[::-1], texts()[:3])]
        whole, back, some = await asyncio.gather(*several)
        assert whole == pytest.approx(by_transformers(folder, texts()), abs=1e-5)
        assert back[::-1] == pytest.approx(whole, abs=1e-5) and some == pytest.approx(whole[:3], abs=1e-5)

    over_http(folder, test)


def test_scores_need_the_runs_token_and_health_does_not(tmp_path):
    async def test(address: str, caller: HttpClient) -> None:
        async with aiohttp.ClientSession() as session:
            guessed, old = call_headers(WORKER, "guessed"), call_headers(Identity("episodes", 0, attempt=0), SECRET)
            for headers, status in (({}, 401), (guessed, 401), (old, 409)):
                async with session.post(f"http://{address}/score", json=[[1]], headers=headers) as response:
                    assert response.status == status
            async with session.get(f"http://{address}/health") as response:
                health = await response.json()
        assert health == {"status": "ok", "run_id": "run-1", "model": "mine", "longest": 64, "scored": 0}

    over_http(reward_folder(tmp_path), test)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"texts": []}, "a list of texts"),
        ([[1], []], "text 1 is not a non-empty list of token ids"),
        ([["a"]], "text 0 is not a non-empty list of token ids"),
        ([[True]], "text 0 is not a non-empty list of token ids"),
        ([[1] * 65], "text 0 has 65 tokens, and the model takes 64"),
        ([[40]], "text 0 has a token that is not one of the 40"),
        ([[-1]], "text 0 has a token that is not one of the 40"),
    ],
)
def test_unusable_texts_are_refused(tmp_path, body, message):
    async def test(address: str, caller: HttpClient) -> None:
        with pytest.raises(HttpError, match=message) as refused:
            await caller.json("POST", address, "/score", body)
        assert refused.value.status == 400

    over_http(reward_folder(tmp_path), test)


def test_a_score_that_is_not_finite_is_an_error(tmp_path):
    def broken(scorer: Scorer) -> None:
        scorer._head.weight.data.fill_(float("nan"))

    async def test(address: str, caller: HttpClient) -> None:
        with pytest.raises(HttpError, match="not finite"):
            await caller.json("POST", address, "/score", [[1, 2]])

    over_http(reward_folder(tmp_path), test, broken)


def test_a_scorer_that_does_not_return_is_seen_by_the_launcher(monkeypatch):
    descriptor = os.memfd_create("pulse")
    os.ftruncate(descriptor, pulse.PAGE_BYTES)
    page = mmap.mmap(descriptor, pulse.PAGE_BYTES)
    monkeypatch.setenv(pulse.PULSE_FD, str(descriptor))
    pulse.open_pulse()
    begun, ends = threading.Event(), threading.Event()

    def scores(texts: list[list[int]]) -> list[float]:
        begun.set()
        ends.wait(60)
        return [0.0 for _ in texts]

    async def main() -> None:
        scorer: Any = SimpleNamespace(max_length=64, vocab_size=40, scores=scores)
        server = RewardModelServer(scorer, CallGuard(SECRET, 1), "run", "model")
        served = await serve(server.application(), "127.0.0.1")
        assert [slot.phase for slot in pulse.read_slots(page)] == ["idle"]
        async with HttpClient(WORKER, SECRET) as client:
            asking = asyncio.create_task(client.json("POST", served.address, "/score", [[1]], 60.0))
            await asyncio.to_thread(begun.wait, 60)
            assert [(slot.phase, slot.thread) for slot in pulse.read_slots(page)] == [("generating", 0)]
            ends.set()
            assert await asking == [0.0]
        assert [slot.phase for slot in pulse.read_slots(page)] == ["idle"]
        await served.close()

    try:
        asyncio.run(main())
    finally:
        ends.set()
        pulse.close_pulse()
