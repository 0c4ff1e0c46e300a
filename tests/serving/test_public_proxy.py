"""The public proxy forwards client requests to the engine and no control route."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from areal_like.serving.control_protocol import OPEN_PATHS
from tests.support import embedded_servers as embedded
from tests.support.external_server import Client, TinyEngine, running
from tests.support.tiny_models import write_tiny_model

ASKED = {"model": "builtin:tiny", "prompt": [5, 9, 13], "max_tokens": 4, "seed": 1, "return_token_ids": True}
COMMANDS = (
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/collective_rpc", "/reset_prefix_cache", "/pause"),
    *("/update_weights_from_disk", "/flush_cache", "/abort_request", "/v1/completions/../../collective_rpc"),
)
"""What engines of others can be asked to do."""


def before_an_engine(root: Path, test: Callable[[Client, embedded.Client], Awaitable[None]]) -> None:
    """The server forwards to a real server, which needs its own token."""

    async def main() -> None:
        folder = write_tiny_model(root / "tokenizer")
        async with embedded.running(folder) as behind, running(root, TinyEngine()) as client:
            proxy = client.engine.proxy
            proxy._address, proxy._headers = behind.address, {"Authorization": f"Bearer {embedded.SECRET}"}
            await asyncio.wait_for(test(client, behind), 60)

    asyncio.run(main())


async def ask(client: Client, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
    """As a client without the run's token."""
    async with aiohttp.ClientSession() as session:
        url = f"http://{client.address}{path}"
        async with session.request(method, url, json=body, headers=headers) as response:
            content = await response.read()
            return response.status, orjson.loads(content) if content[:1] in b"{[" else content


def test_queries_are_answered_by_the_engine(tmp_path: Path) -> None:
    async def test(client: Client, behind: embedded.Client) -> None:
        status, answer = await ask(client, "GET", "/v1/models")
        assert status == 200 and answer["data"][0]["id"] == "builtin:tiny"
        status, answer = await ask(client, "POST", "/v1/completions", ASKED)
        assert status == 200 and len(answer["choices"][0]["token_ids"]) <= 4
        status, answer = await ask(client, "POST", "/v1/completions", ASKED | {"max_tokens": 0})
        assert status == 400 and "max_tokens" in answer["error"]["message"]

    before_an_engine(tmp_path, test)


def test_no_control_route_of_the_engine_is_forwarded_with_or_without_the_token(tmp_path: Path) -> None:
    async def test(client: Client, behind: embedded.Client) -> None:
        for path in COMMANDS:
            assert (await ask(client, "POST", path, {}))[0] in (401, 404, 405), path
            async with client.caller.session.post(f"http://{client.address}{path}", json={}) as response:
                assert response.status in (404, 405), path
        for path in OPEN_PATHS:
            status, _ = await ask(client, "DELETE", path)
            assert status == 405, path

    before_an_engine(tmp_path, test)


def test_generation_for_public_clients_is_paused_with_the_run(tmp_path: Path) -> None:
    async def test(client: Client, behind: embedded.Client) -> None:
        await client.update(tmp_path, 1, 1)
        await client.call("POST", "/control/pause", {"mode": "wait"})
        asking = asyncio.create_task(ask(client, "POST", "/v1/completions", ASKED))
        await embedded.until(lambda: client.server.queue.waiting > 0)
        assert not asking.done() and (await ask(client, "GET", "/v1/models"))[0] == 200
        await client.call("POST", "/control/resume")
        assert (await asking)[0] == 200

    before_an_engine(tmp_path, test)


def test_an_interrupted_answer_is_requested_again(tmp_path: Path) -> None:
    async def test(client: Client, behind: embedded.Client) -> None:
        await client.update(tmp_path, 1, 1)
        embedded.slow(behind.engine)
        long = ASKED | {"max_tokens": 30, "stop_token_ids": []}
        asking = asyncio.create_task(ask(client, "POST", "/v1/completions", long))
        await embedded.until(lambda: behind.engine.num_running == 1)
        await client.call("POST", "/control/pause", {"mode": "abort"})
        await client.call("POST", "/control/resume")
        status, answer = await asking
        assert status == 200 and answer["choices"][0]["token_ids"]
        assert behind.engine.counts.groups == 2

    before_an_engine(tmp_path, test)


def test_an_engine_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    async def test(client: Client, behind: embedded.Client) -> None:
        client.engine.proxy._address = "127.0.0.1:9"
        status, answer = await ask(client, "GET", "/v1/models")
        assert status == 503 and "the engine does not answer" in answer["error"]["message"]

    before_an_engine(tmp_path, test)
