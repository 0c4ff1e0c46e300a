"""Weight updates of a real SGLang on a CPU: from files, by broadcast, and as adapters."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from areal_like.serving.engines.base import GenerateOutput, GenerateRequest, NotStaged, WeightUpdate
from areal_like.serving.engines.sglang.engine import SGLangEngine
from areal_like.weights.collective import BroadcastHost
from areal_like.weights.errors import BadWeights, GroupBroken
from areal_like.weights.flat_buckets import FlatWeights, flatten
from areal_like.weights.rendezvous import Rendezvous
from tests.support.embedded_adapters import ATTENTION, logprobs_by, with_peft, write_adapter
from tests.support.engine_environments import only_on
from tests.support.sglang_servers import EXACT, PROMPT, SGLangAlone, bring, published, reference, tensors_of

pytestmark = only_on("sglang")

RENDEZVOUS_TIMEOUT_S = 30.0


def test_weights_from_files_are_served_and_every_tensor_is_read_back(sglang: SGLangAlone, tmp_path: Path):
    arrival = published(tmp_path, 1)

    async def updated(engine: SGLangEngine) -> tuple[Any, list[float]]:
        await bring(engine, arrival)
        return await engine.verify(arrival.index.tensors, arrival.folder), await engine.logprobs(PROMPT)

    results, logprobs = sglang.ask(updated)
    assert results.hashes == {info.name: info.hash for info in arrival.index.tensors}
    assert not results.wrong and not results.uncovered
    assert logprobs == pytest.approx(logprobs_by(reference(1), PROMPT), abs=EXACT)


def test_a_cached_prompt_is_computed_again_after_an_update(sglang: SGLangAlone, tmp_path: Path):
    prompt = [5 + place % 50 for place in range(200)]

    async def answered(engine: SGLangEngine) -> list[tuple[int, GenerateOutput]]:
        outputs = []
        for seed in (1, 2):
            await bring(engine, published(tmp_path, seed))
            for _ in ("first", "cached"):
                outputs += [
                    (seed, output)
                    for output in await engine.generate(GenerateRequest("a", prompt, 2, 1, {"max_new_tokens": 4}))
                ]
        return outputs

    for seed, output in sglang.ask(answered):
        required = logprobs_by(reference(seed), [*prompt, *output.token_ids])[len(prompt) - 1 :]
        assert output.logprobs == pytest.approx(required, abs=EXACT)


def test_weights_are_loaded_while_requests_are_ending(sglang: SGLangAlone, tmp_path: Path):
    """SGLang would die of new weights while it still counts a request as running."""
    arrivals = [published(tmp_path, seed) for seed in (1, 2)]

    async def updated(engine: SGLangEngine) -> None:
        for turn in range(6):
            wants = {"max_new_tokens": 300, "min_new_tokens": 300}
            request = GenerateRequest(f"a{turn}", PROMPT, 8, 1, wants)
            under_way = asyncio.create_task(engine.generate(request))
            await asyncio.sleep(0.1)
            arrival = arrivals[turn % 2]
            await engine.stage(arrival)
            await engine.abort(None)
            await under_way
            await engine.commit(arrival)

    sglang.ask(updated)
    assert sglang.live.is_alive()


def test_a_removed_publication_is_never_loaded(sglang: SGLangAlone, tmp_path: Path):
    arrival = published(tmp_path, 1)

    async def vanished(engine: SGLangEngine) -> list[float]:
        await engine.stage(arrival)
        assert arrival.folder is not None
        (arrival.folder / arrival.index.buckets[0].file).unlink()
        with pytest.raises(NotStaged, match="was removed or truncated"):
            await engine.commit(arrival)
        return await engine.logprobs(PROMPT)

    assert sglang.ask(vanished) == pytest.approx(logprobs_by(reference(0), PROMPT), abs=EXACT)


def send(host: BroadcastHost, rendezvous: Rendezvous, flat: FlatWeights, stops: bool = False) -> None:
    with contextlib.suppress(InterruptedError), host.open(rendezvous) as group:
        group.join()
        for content in flat.contents:
            if stops:
                raise InterruptedError("the trainer is gone")
            group.send(content)


async def receive(engine: SGLangEngine, flat: FlatWeights, stops: bool = False) -> None:
    host = BroadcastHost("127.0.0.1", 0)
    try:
        rendezvous = Rendezvous(host.host, host.port, f"v{flat.index.version}", "gloo", 1, 2, RENDEZVOUS_TIMEOUT_S)
        arrival = WeightUpdate(flat.index.version, flat.index, None, rendezvous)
        sending = asyncio.to_thread(send, host, rendezvous, flat, stops)
        await asyncio.gather(sending, engine.stage(arrival))
        await engine.commit(arrival)
    finally:
        host.close()


def test_sent_weights_are_served(sglang: SGLangAlone):
    flat = flatten(2, tensors_of(2), None, "test")

    async def updated(engine: SGLangEngine) -> tuple[Any, list[float]]:
        await receive(engine, flat)
        return await engine.verify(flat.index.tensors, None), await engine.logprobs(PROMPT)

    results, logprobs = sglang.ask(updated)
    assert len(results.hashes) == len(flat.index.tensors) and not results.wrong
    assert logprobs == pytest.approx(logprobs_by(reference(2), PROMPT), abs=EXACT)


def test_weights_damaged_in_transfer_are_never_loaded(sglang: SGLangAlone):
    flat = flatten(3, tensors_of(3), None, "test")
    flat.contents[0][7] ^= 1

    async def refusal(engine: SGLangEngine) -> list[float]:
        with pytest.raises(BadWeights, match="tensor model"):
            await receive(engine, flat)
        return await engine.logprobs(PROMPT)

    assert sglang.ask(refusal) == pytest.approx(logprobs_by(reference(0), PROMPT), abs=EXACT)


def test_a_sender_that_dies_leaves_the_old_weights(sglang: SGLangAlone):
    flat = flatten(4, tensors_of(3), None, "test")

    async def left(engine: SGLangEngine) -> list[float]:
        with pytest.raises(GroupBroken, match="group v4"):
            await receive(engine, flat, stops=True)
        return await engine.logprobs(PROMPT)

    assert sglang.ask(left) == pytest.approx(logprobs_by(reference(0), PROMPT), abs=EXACT)


# Adapters.


def test_adapters_are_loaded_and_unloaded_beside_the_model(sglang: SGLangAlone, tmp_path: Path):
    model = reference(0)
    folders = [write_adapter(tmp_path / f"v{number}", model, number) for number in (1, 2)]
    folders.append(write_adapter(tmp_path / "v3", model, 3, target_modules=ATTENTION))
    required = [logprobs_by(with_peft(model, folder), PROMPT) for folder in folders]

    async def used(engine: SGLangEngine) -> list[list[float]]:
        await engine.load_adapter("v1", folders[0])
        await engine.load_adapter("v2", folders[1])
        results = [await engine.logprobs(PROMPT, name) for name in ("v1", "v2")]
        groups = [
            GenerateRequest(f"{name}{turn}", PROMPT, 2, 1, {"max_new_tokens": 8}, name)
            for name in (None, "v1", "v2")
            for turn in (0, 1)
        ]
        await asyncio.gather(*map(engine.generate, groups))
        await engine.unload_adapter("v1")
        await engine.load_adapter("v3", folders[2])
        results.append(await engine.logprobs(PROMPT, "v3"))
        with pytest.raises(ValueError, match="already loaded"):
            await engine.load_adapter("v3", folders[2])
        for name in ("v2", "v3"):
            await engine.unload_adapter(name)
        return [*results, await engine.logprobs(PROMPT)]

    results = sglang.ask(used)
    for got, expected in zip(results, [*required, logprobs_by(model, PROMPT)], strict=True):
        assert got == pytest.approx(expected, abs=EXACT)
