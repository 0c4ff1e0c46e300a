"""The server over HTTP: streams, refusals, aborts."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from transformers import PreTrainedModel

from areal_like import __version__
from areal_like.process.errors import HttpError
from areal_like.process.identity import Identity, call_headers
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.requests import FinishedGroup, GroupRequest, Sampling
from tests.support.embedded_servers import (
    CONTROLLER,
    RUN_ID,
    SECRET,
    Client,
    group,
    over_http,
    published,
    slow,
    turns,
    until,
)
from tests.support.tiny_models import tiny_qwen3


def direct(model: PreTrainedModel, body: dict[str, Any]) -> list[list[int]]:
    """The same group without HTTP."""
    request = GroupRequest("g", tuple(body["prompt"]), body["n"], body["seed"], Sampling(**body["sampling"]))
    return [sample.token_ids for sample in LLMEngine(model).generate([request])[0].samples]


def test_groups_come_as_lines_as_they_finish(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.call("POST", "/control/update_weights", published(tmp_path, 2, tiny_qwen3(1)))
        long, short = group("long", max_new_tokens=50), group("short", seed=4, max_new_tokens=2)
        lines = await client.generate(long, group("bad", top_p=1.5), short)
        assert list(lines) == ["bad", "short", "long"]
        assert lines["bad"]["error"].startswith("gconfig.top_p: 1.5")
        for request in (long, short):
            samples = lines[str(request["id"])]["samples"]
            assert [sample["token_ids"] for sample in samples] == direct(tiny_qwen3(1), request)
            for sample in samples:
                assert set(sample) == {"token_ids", "logprobs", "versions", "finish"}
                assert sample["versions"] == [2] * len(sample["token_ids"])

    over_http(test)


ROUTES = [
    ("POST", "/generate"),
    ("POST", "/control/update_weights"),
    ("POST", "/control/stage_weights"),
    ("POST", "/control/commit_weights"),
    ("POST", "/control/load_adapter"),
    ("POST", "/control/unload_adapter"),
    ("POST", "/control/pause"),
    ("POST", "/control/resume"),
    ("POST", "/control/abort"),
    ("GET", "/control/fingerprint"),
    ("GET", "/control/statistics"),
]

OPEN = ("/health", "/v1/", "/inference/v1/", "/tokenize", "/detokenize", "/metrics", "/version")


def test_control_routes_need_the_token_and_the_newest_attempt() -> None:
    async def test(client: Client) -> None:
        wrong = call_headers(CONTROLLER, "guessed")
        old = call_headers(Identity("rollout", 0, attempt=0), SECRET)
        for method, path in ROUTES:
            for headers, status in (({}, 401), (wrong, 401), (old, 409)):
                url = f"http://{client.address}{path}"
                async with client.session.request(method, url, json={}, headers=headers) as response:
                    assert response.status == status, path
                    assert "message" in (await response.json())["error"]
        assert (await client.open("GET", "/health"))[0] == 200
        known = {(method, path) for method, path in ROUTES}
        for route in client.server.application().router.routes():
            path = route.resource.canonical if route.resource else ""
            if route.method != "HEAD" and not path.startswith(OPEN):
                assert (route.method, path) in known

    over_http(test)


def test_generation_is_refused_before_the_first_weights() -> None:
    async def test(client: Client) -> None:
        with pytest.raises(HttpError, match="no weights by the run yet") as refused:
            await client.call("POST", "/generate", {"groups": [group("g")]})
        assert refused.value.status == 503
        assert (await client.open("GET", "/health"))[1] == {
            "status": "ok",
            "run_id": RUN_ID,
            "model": "builtin:tiny",
            "version": -1,
            "engine": "embedded",
            "engine_version": __version__,
            "dtype": "float32",
            "attempt": 1,
            "processes": 1,
            "devices": [],
        }

    over_http(test)


def test_a_disconnected_client_ends_its_groups(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.call("POST", "/control/update_weights", published(tmp_path, 1, tiny_qwen3()))
        slow(client.engine)
        body = {"groups": [group(str(i), n=8, max_new_tokens=59) for i in range(20)]}
        async with aiohttp.ClientSession(headers=call_headers(CONTROLLER, SECRET)) as session:
            generating = asyncio.ensure_future(session.post(f"http://{client.address}/generate", json=body))
            stays = asyncio.ensure_future(client.generate(group("stays", max_new_tokens=4)))
            await until(lambda: client.engine.num_running > 0)
            (await generating).close()
        await until(lambda: client.engine.num_running == client.engine.num_waiting == 0)
        assert client.engine.counts.groups < 20
        assert "samples" in (await stays)["stays"]

    over_http(test)


def test_groups_can_be_aborted_by_id_and_all_at_once(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.call("POST", "/control/update_weights", published(tmp_path, 1, tiny_qwen3()))
        await client.call("POST", "/control/pause")
        generating = asyncio.ensure_future(client.generate(*[group(name) for name in "abcd"]))
        await until(lambda: client.engine.num_waiting == 4)
        assert await client.call("POST", "/control/abort", {"ids": ["a", "c"]}) == {"aborted": 2}
        await client.call("POST", "/control/resume")
        lines = await generating
        assert [name for name in "abcd" if "error" in lines[name]] == ["a", "c"]
        await client.call("POST", "/control/pause")
        generating = asyncio.ensure_future(client.generate(*[group(name) for name in "ef"]))
        await until(lambda: client.engine.num_waiting == 2)
        assert await client.call("POST", "/control/abort", {"ids": "all"}) == {"aborted": 2}
        assert all("aborted" in line["error"] for line in (await generating).values())  # even during a pause
        with pytest.raises(HttpError, match="ids: "):
            await client.call("POST", "/control/abort", {})

    over_http(test)


def test_a_failed_engine_is_reported_at_once(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        def fail(*given: object) -> None:
            raise MemoryError("no room")

        await client.call("POST", "/control/update_weights", published(tmp_path, 1, tiny_qwen3()))
        client.engine.runner.model.register_forward_pre_hook(fail)
        generating = asyncio.ensure_future(client.generate(group("g")))
        with pytest.raises(MemoryError):
            await client.embedded.async_engine.broken
        generating.cancel()

    over_http(test)


def test_an_idle_server_computes_nothing(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.call("POST", "/control/update_weights", published(tmp_path, 1, tiny_qwen3()))
        await client.generate(group("g"))
        take_finished, steps, iterations = client.engine.take_finished, client.engine.counts.steps, 0

        def counted() -> list[FinishedGroup]:
            nonlocal iterations
            iterations += 1
            return take_finished()

        client.engine.take_finished = counted  # type: ignore[method-assign]
        await turns(client, 100)
        assert client.engine.counts.steps == steps
        assert iterations <= 101, "its thread sleeps while there is no work"

    over_http(test)
