"""Engines that fail during an update: served version, messages and retries."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from areal_like.serving.control_protocol import ABORT, KEEP
from areal_like.serving.engines.base import EngineGone, NotStaged, Verification, WeightUpdate
from areal_like.serving.engines.sglang.weights import WeightLoader
from areal_like.serving.pauser import Pauser
from areal_like.serving.request_queue import RequestQueue
from areal_like.weights.index import read_index
from tests.serving.test_updates import NO_END, refusal, same
from tests.support.external_server import Client, TinyEngine, check, group, published, until, with_server


def fails_once(engine: TinyEngine, name: str, fault: Exception) -> None:
    """The next call of one of its methods."""
    method = getattr(engine, name)

    async def failing(*given: Any) -> Any:
        setattr(engine, name, method)
        raise fault

    setattr(engine, name, failing)


def test_a_version_is_reported_as_served_only_after_verification(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        looks, verify = asyncio.Event(), client.engine.verify

        async def held(*given: Any) -> Verification:
            await looks.wait()
            return await verify(*given)

        client.engine.verify = held  # type: ignore[assignment, method-assign]
        updating = asyncio.create_task(client.update(tmp_path, 2, 2))
        await until(lambda: client.engine.version == 2)
        assert (await client.call("GET", "/health"))["version"] == 1
        looks.set()
        await updating
        assert (await client.call("GET", "/health"))["version"] == 2

    with_server(tmp_path, test)


def test_an_engine_that_does_not_resume_after_the_swap_is_broken(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        fails_once(client.engine, "resume", EngineGone("the engine does not answer"))
        response = await refusal(client, "/control/update_weights", published(tmp_path, 2, 2))
        assert response.status == 503 and "the engine does not answer" in response.message
        health = await client.call("GET", "/health")
        assert (health["status"], health["version"]) == ("broken", 1)
        assert client.server.fatal.done()

    with_server(tmp_path, test, can_keep=True)


def test_weights_that_were_removed_before_the_load_can_be_staged_again(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        asking = asyncio.create_task(client.generate(group("g", **NO_END)))
        await until(lambda: len(client.engine.in_flight) == 1)
        fails_once(client.engine, "commit", NotStaged("version 2 of the weights: a file is gone"))
        response = await refusal(client, "/control/update_weights", published(tmp_path, 2, 2))
        assert response.status == 410 and "a file is gone" in response.message
        health = await client.call("GET", "/health")
        assert (health["status"], health["version"]) == ("ok", 1)
        assert (await client.update(tmp_path, 2, 2))["version"] == 2
        check((await asking)["g"]["samples"][0], same)

    with_server(tmp_path, test, token_s=0.02)


def test_a_resume_that_failed_at_the_engine_can_be_repeated(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.update(tmp_path, 1, 1)
        await client.call("POST", "/control/pause", {"mode": "keep"})
        fails_once(client.engine, "resume", EngineGone("the engine does not answer"))
        assert (await refusal(client, "/control/resume", {})).status == 503
        await client.call("POST", "/control/resume")
        check((await client.generate(group("g")))["g"]["samples"][0], same)

    with_server(tmp_path, test, can_keep=True)


def test_changing_a_pause_does_not_resume_the_pause_of_another_owner() -> None:
    async def test() -> None:
        engine = TinyEngine(can_keep=True)
        pauser, resume = Pauser(engine, RequestQueue(), 60.0), engine.resume

        begins, may_continue = asyncio.Event(), asyncio.Event()

        async def slowly() -> None:
            begins.set()
            await may_continue.wait()
            await resume()

        engine.resume = slowly  # type: ignore[method-assign]
        await pauser.pause("one", KEEP)
        changing = asyncio.create_task(pauser.pause("one", ABORT))
        await begins.wait()
        freezing = asyncio.create_task(pauser.pause("other", KEEP))
        for _ in range(10):
            await asyncio.sleep(0)
        may_continue.set()
        await freezing
        await changing
        assert not engine._runs.is_set()
        await pauser.resume("one")
        assert not engine._runs.is_set()
        await pauser.resume("other")
        assert engine._runs.is_set()

    asyncio.run(test())


class NoCalls:
    """An SGLang that must not be called."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"SGLang was called: {name}")


def test_sglang_is_not_called_for_removed_files(tmp_path: Path) -> None:
    async def test() -> None:
        folder = Path(published(tmp_path, 1, 1)["folder"])
        arrival = WeightUpdate(1, read_index(folder), folder)
        weights: Any = WeightLoader(NoCalls())  # type: ignore[arg-type]
        with pytest.raises(NotStaged, match="was not staged"):
            await weights.commit(arrival)
        await weights.stage(arrival)
        (folder / arrival.index.buckets[0].file).unlink()
        with pytest.raises(NotStaged, match="was removed or truncated"):
            await weights.commit(arrival)

    asyncio.run(test())
