"""Attached servers are detected, used like the run's own, and reported when they end."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.process.http import HttpClient, json_response, serve
from areal_like.process.identity import Identity
from tests.support.embedded_servers import SECRET as KEY
from tests.support.embedded_servers import Client, group, published, running
from tests.support.external_processes import SECRET, ExternalServerProcess, external_server, write_run
from tests.support.tiny_models import tiny_qwen3

CONTROLLER = Identity("rollout", 0, attempt=1)


class Attacher:
    """Calls of the run's processes to the server."""

    def __init__(self, one: ExternalServerProcess, address: str, caller: HttpClient) -> None:
        self.one, self.address, self.caller = one, address, caller

    async def call(self, method: str, path: str, body: object = None) -> Any:
        return await self.caller.json(method, self.address, path, body)

    async def generate(self, *groups: dict[str, object]) -> dict[str, Any]:
        body = orjson.dumps({"groups": groups})
        async with self.caller.session.post(f"http://{self.address}/generate", data=body) as response:
            lines = [orjson.loads(line) async for line in response.content]
        return {line["id"]: line for line in lines}


def attached(root: Path, test: Callable[[Attacher, Client], Awaitable[None]], *words: str) -> None:
    directory = write_run(root, "rollout.api_key_var=THEIR_KEY")

    async def main() -> None:
        async with running() as theirs:
            with external_server(directory, "--attach", theirs.address, *words, THEIR_KEY=KEY) as one:
                address = await asyncio.to_thread(one.address)
                async with HttpClient(CONTROLLER, SECRET) as caller:
                    await asyncio.wait_for(test(Attacher(one, address, caller), theirs), 60)

    asyncio.run(main())


def failed(root: Path, address: str, *overrides: str, **more: str) -> dict[str, Any]:
    """The failure note of a server that cannot attach."""
    with external_server(write_run(root, *overrides), "--attach", address, **more) as one:
        assert one.code() == 1, one.printed
        return one.note


@pytest.mark.shows("rollout.api_key_var")
def test_an_attached_areal_like_server_serves_with_the_runs_token(tmp_path: Path) -> None:
    async def test(mine: Attacher, theirs: Client) -> None:
        assert "is embedded" in mine.one.printed
        health = await mine.call("GET", "/health")
        assert health["run_id"] == "run1" and health["version"] == -1
        body = published(tmp_path, 1, tiny_qwen3(1))
        assert (await mine.call("POST", "/control/update_weights", body))["version"] == 1
        lines = await mine.generate(*(group(str(n), seed=n) for n in range(20)))
        assert len(lines) == 20 and all(len(line["samples"]) == 2 for line in lines.values())
        assert (await mine.call("GET", "/control/statistics"))["version"] == 1
        assert (await mine.call("GET", "/control/fingerprint"))["version"] == 1
        with pytest.raises(HttpError, match="stale") as refusal:
            await mine.call("POST", "/control/update_weights", body)
        assert refusal.value.status == 409
        async with aiohttp.ClientSession() as stranger:
            async with stranger.get(f"http://{mine.address}/v1/models") as response:
                assert response.status == 200
            for path in ("/generate", "/control/update_weights", "/control/abort"):
                async with stranger.post(f"http://{mine.address}{path}", json={}) as response:
                    assert response.status == 401

    attached(tmp_path, test)


def test_a_client_that_disconnects_ends_its_groups_at_the_other_server(tmp_path: Path) -> None:
    async def test(mine: Attacher, theirs: Client) -> None:
        await mine.call("POST", "/control/update_weights", published(tmp_path, 1, tiny_qwen3(1)))
        await mine.call("POST", "/control/pause")
        asking = asyncio.create_task(mine.generate(group("g", max_new_tokens=50)))
        while not (await mine.call("GET", "/control/statistics"))["waiting"]:
            await asyncio.sleep(0.02)
        asking.cancel()
        while (await mine.call("GET", "/control/statistics"))["waiting"]:
            await asyncio.sleep(0.02)
        await mine.call("POST", "/control/resume")
        assert "samples" in (await mine.generate(group("after")))["after"]

    attached(tmp_path, test)


def test_a_server_that_served_another_run_forgets_its_weights(tmp_path: Path) -> None:
    async def main() -> None:
        async with running() as theirs:
            for number in range(2):
                (tmp_path / str(number)).mkdir()
                directory = write_run(tmp_path / str(number), "rollout.api_key_var=THEIR_KEY")
                with external_server(directory, "--attach", f"http://{theirs.address}/", THEIR_KEY=KEY) as one:
                    address = await asyncio.to_thread(one.address)
                    async with HttpClient(CONTROLLER, SECRET) as caller:
                        health = await caller.json("GET", address, "/health")
                        assert health["version"] == -1
                        body = published(tmp_path / str(number), 0, tiny_qwen3(number))
                        done = await caller.json("POST", address, "/control/update_weights", body)
                        assert done["version"] == 0
                await asyncio.sleep(1)

    asyncio.run(main())


def test_a_server_that_ends_is_reported_with_its_address(tmp_path: Path) -> None:
    directory = write_run(tmp_path, "rollout.api_key_var=THEIR_KEY")

    async def main() -> None:
        async with running() as theirs:
            one = ExternalServerProcess(directory, ["--attach", theirs.address], THEIR_KEY=KEY)
            await asyncio.to_thread(one.address)
        try:
            assert await asyncio.to_thread(one.code, 20) == 1
            start = f"the server at {theirs.address} (rollout.server_addresses) no longer answers"
            assert one.note["message"].startswith(start)
        finally:
            one.process.kill()
            one.output.close()

    asyncio.run(main())


@pytest.mark.parametrize("key", ["", "the wrong one"])
def test_a_wrong_key_is_reported_with_the_name_of_its_variable(tmp_path: Path, key: str) -> None:
    async def main() -> None:
        async with running() as theirs:
            note = await asyncio.to_thread(
                failed, tmp_path, theirs.address, "rollout.api_key_var=THEIR_KEY", THEIR_KEY=key
            )
            held = "another key" if key else "none"
            assert note["message"].startswith("rollout.api_key_var: ")
            assert f"THEIR_KEY holds {held}" in note["message"]

    asyncio.run(main())


def test_attaching_to_a_silent_server_ends_after_the_named_limit(tmp_path: Path) -> None:
    note = failed(tmp_path, "127.0.0.1:9", "rollout.setup_timeout=1")
    assert note["kind"] == "timeout"
    assert note["message"].startswith("rollout.setup_timeout: waited 1 s for the server at 127.0.0.1:9")


@pytest.mark.parametrize(
    ("address", "words"), [("https://example.org:1", "https is not supported"), ("somewhere", "give host:port")]
)
def test_an_invalid_address_is_refused(tmp_path: Path, address: str, words: str) -> None:
    message = failed(tmp_path, address)["message"]
    assert message.startswith("rollout.server_addresses: ") and words in message


def answering(root: Path, routes: dict[str, object], *overrides: str) -> str:
    """The failure message about a server with these paths and no others."""

    async def main() -> str:
        async def say(request: web.Request) -> web.Response:
            if request.path not in routes:
                raise web.HTTPNotFound
            return json_response(routes[request.path])

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", say)
        served = await serve(app, "127.0.0.1")
        try:
            note = await asyncio.to_thread(failed, root, served.address, *overrides)
            return str(note["message"])
        finally:
            await served.close()

    return asyncio.run(main())


def test_a_server_that_is_no_inference_server_is_refused(tmp_path: Path) -> None:
    message = answering(tmp_path, {"/": "a web site"})
    assert "is not recognized as one of ours, vLLM or SGLang" in message and "rollout.server_type" in message


def test_a_vllm_that_cannot_take_weights_is_refused_with_the_flags_that_it_needs(tmp_path: Path) -> None:
    card = {"id": "m", "root": "m", "owned_by": "vllm", "max_model_len": 512, "parent": None}
    routes = {"/version": {"version": "0.32.0"}, "/v1/models": {"data": [card]}}
    message = answering(tmp_path, routes)
    assert "VLLM_SERVER_DEV_MODE=1" in message and "--worker-extension-cls" in message
