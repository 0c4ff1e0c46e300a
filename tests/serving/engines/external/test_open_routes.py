"""Open routes are a list of paths, and no spelling of another path matches one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.process.http import HttpClient, application, serve
from areal_like.process.identity import CallGuard, Identity
from areal_like.process.proof_handshake import ProofVerifier
from areal_like.process.wait import NamedWait
from areal_like.serving.control_protocol import CLIENT_PATHS, OPEN_PATHS, QUERY_PATHS
from areal_like.serving.forwarding import ForwardingServer
from tests.support import embedded_servers, external_server
from tests.support.raw_http import DISGUISES, METHODS, status_of

COMMANDS = ("generate", "control/pause", "control/update_weights", "control/statistics")
REFUSED = (400, 401, 404, 405)
OURS = "the key of this run alone"


@asynccontextmanager
async def passing(address: str) -> AsyncIterator[str]:
    """The address of a pass-through before a server of ours."""
    through = ForwardingServer(
        address,
        embedded_servers.SECRET,
        ProofVerifier(embedded_servers.SECRET),
        CallGuard(OURS, 1),
        "run-2",
        "THEIR_KEY",
        3600.0,
    )
    await through.ready(Identity("server", 0), NamedWait("the server", 10.0, "rollout.setup_timeout"))
    served = await serve(through.application(), "127.0.0.1")
    try:
        yield served.address
    finally:
        await served.close()
        await through.close()


def before(test: Callable[[str, embedded_servers.Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with embedded_servers.running() as behind, passing(behind.address) as address:
            await asyncio.wait_for(test(address, behind), 60)

    asyncio.run(main())


async def nothing_is_commanded(address: str) -> None:
    for name in COMMANDS:
        for disguise in ("/{}", *DISGUISES):
            target = disguise.format(name)
            for method in METHODS:
                status = await status_of(address, method, target)
                asks_models = target.partition("?")[0] == "/v1/models" and status in (200, 405)
                assert status in REFUSED or asks_models, (method, target, status)


def test_no_spelling_of_a_control_path_is_forwarded_without_the_token() -> None:
    async def test(address: str, behind: embedded_servers.Client) -> None:
        await nothing_is_commanded(address)
        assert not behind.embedded.async_engine.thread.is_paused

    before(test)


def test_the_embedded_server_needs_the_token_for_every_spelling_of_a_control_path() -> None:
    async def test(client: embedded_servers.Client) -> None:
        await nothing_is_commanded(client.address)
        assert not client.embedded.async_engine.thread.is_paused

    embedded_servers.over_http(test)


def test_the_external_server_needs_the_token_for_every_spelling_of_a_control_path(tmp_path: Path) -> None:
    async def test(client: external_server.Client) -> None:
        client.engine.proxy._address = "127.0.0.1:9"
        for name in COMMANDS:
            for disguise in ("/{}", *DISGUISES):
                if (target := disguise.format(name)).partition("?")[0] != "/v1/models":
                    for method in METHODS:
                        assert await status_of(client.address, method, target) in REFUSED, (method, target)
        assert client.server.queue.is_open

    external_server.with_server(tmp_path, test)


def test_the_run_that_attached_last_controls_the_server_with_any_clock() -> None:
    async def main() -> None:
        async with embedded_servers.running() as behind:
            guard = behind.server._guard
            guard.attempt = 1 << 40  # a run whose clock was far ahead was here
            async with passing(behind.address) as first, passing(behind.address) as second:
                assert guard.attempt == (1 << 40) + 2
                async with HttpClient(Identity("rollout", 0), OURS) as caller:
                    with pytest.raises(HttpError, match="of attempt"):
                        await caller.json("GET", first, "/control/statistics")
                    assert await caller.json("GET", second, "/control/statistics")
                async with HttpClient(Identity("rollout", 0, attempt=2), OURS) as recovered:
                    assert await recovered.json("GET", first, "/control/statistics")
                assert guard.attempt == (1 << 40) + 3

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("path", QUERY_PATHS)
def test_an_open_path_is_forwarded_under_its_own_name_and_without_the_key(path: str) -> None:
    """No open route can do more than a client without a key."""
    seen: list[tuple[str, str, str | None, str | None]] = []

    async def note(request: web.Request) -> web.Response:
        held = [request.headers.get(name) for name in ("Authorization", "X-Areal-Attempt")]
        seen.append((request.method, request.raw_path, held[0], held[1]))
        return web.json_response({})

    async def main() -> None:
        guard = CallGuard(embedded_servers.SECRET)
        app = application(guard, OPEN_PATHS, ("/control/statistics",))
        app.router.add_route("*", "/{path:.*}", note)
        behind = await serve(app, "127.0.0.1")
        try:
            async with passing(behind.address) as address:
                del seen[:]
                assert await status_of(address, "GET", f"{path}?x=/../control/pause") == 200
                assert seen == [("GET", path, None, None)]
        finally:
            await behind.close()

    asyncio.run(main())


def test_the_open_paths_are_listed_and_answer_one_method_alone() -> None:
    async def test(address: str, behind: embedded_servers.Client) -> None:
        for path in OPEN_PATHS:
            for method in ("DELETE", "PUT", "PATCH", "OPTIONS"):
                assert await status_of(address, method, path) == 405, (method, path)
        for path in CLIENT_PATHS:
            assert await status_of(address, "POST", path) == 401, path
        for path in ("/v1", "/v1/", "/v1/anything", "/metrics/", "/healthy", "/health/more", "/tokenize2"):
            for method in METHODS:
                assert await status_of(address, method, path) == 401, (method, path)

    before(test)
