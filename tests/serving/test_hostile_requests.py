"""Hostile requests to servers and controller are answered and change nothing for the run."""

import asyncio
import functools
import logging
from pathlib import Path

import pytest

from areal_like.process import connection_limits
from areal_like.process.http import application
from areal_like.process.identity import CallGuard
from areal_like.process.request_checks import BodyLimits
from areal_like.rollout.controller.routes import Routes
from areal_like.serving import server as attendant_server
from areal_like.serving import server as server_module
from tests.support import embedded_servers, external_server
from tests.support.controller_world import World, make_run
from tests.support.hostile_requests import COUNT, FULL, NONE, bad, routes_of, send_all, send_slowly
from tests.support.tiny_models import tiny_qwen3

pytestmark = pytest.mark.hypothesis  # `.ci/run --full` throws 10,000 at each route
SLOW_COUNT = 40 if FULL else 4
HEADERS_S = 20.0 if FULL else 2.0
"""Busy machines take a while to read even a few connections, and long for a thousand."""
SHORT_LIMITS = functools.partial(BodyLimits, of_others_s=0.2)


async def send_endless_requests(
    address: str, routes: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    """The server ends each after its own timeout."""
    with monkeypatch.context() as patch:
        patch.setattr(connection_limits, "HEADERS_TIMEOUT_S", HEADERS_S)
        results = await send_slowly(address, routes, 4, SLOW_COUNT)
    assert not bad(results)
    assert {NONE, 408 if is_open else 401} <= {status for counts in results.values() for status in counts}


@pytest.mark.timeout(3600 if FULL else 300)
@pytest.mark.parametrize("is_open", [True, False])
def test_the_embedded_server_answers_and_generates_the_same(
    tmp_path: Path, is_open: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "BodyLimits", SHORT_LIMITS)

    async def main() -> None:
        async with embedded_servers.running(is_open=is_open) as client:
            weights = embedded_servers.published(tmp_path, 1, tiny_qwen3(1))
            await client.call("POST", "/control/update_weights", weights)
            before = await client.generate(embedded_servers.group("g"))
            routes = routes_of(client.server.application())
            assert ("POST", "/v1/completions") in routes and ("POST", "/generate") in routes
            results = await send_all(client.address, routes, 1, COUNT if is_open else COUNT // 10)
            assert not bad(results)
            for (_, path), counts in results.items():
                if path.startswith(("/control/", "/generate")):
                    assert 200 not in counts, path
            await send_endless_requests(client.address, routes, monkeypatch, is_open)
            assert await client.generate(embedded_servers.group("g")) == before
            assert not client.embedded.async_engine.broken.done() and client.engine.counts.recomputed == 0

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert "Traceback" not in caplog.text


@pytest.mark.timeout(3600 if FULL else 300)
def test_the_external_server_answers_and_generates_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attendant_server, "BodyLimits", SHORT_LIMITS)

    async def main() -> None:
        engine = external_server.TinyEngine()
        async with embedded_servers.running() as behind, external_server.running(tmp_path, engine) as client:
            proxy = client.engine.proxy
            proxy._address, proxy._headers = behind.address, {"Authorization": f"Bearer {embedded_servers.SECRET}"}
            await client.update(tmp_path, 1, 1)
            before = await client.generate(external_server.group("g"))
            routes = routes_of(client.server.application())
            assert not bad(await send_all(client.address, routes, 2, COUNT))
            await send_endless_requests(client.address, routes, monkeypatch, is_open=True)
            assert await client.generate(external_server.group("g")) == before
            assert not behind.embedded.async_engine.broken.done()

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert "Traceback" not in caplog.text


@pytest.mark.timeout(3600 if FULL else 300)
def test_the_controller_refuses_hostile_requests_and_keeps_running(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        from areal_like.discovery import MemoryEntries

        world = World(make_run(tmp_path / "run", "rollout.setup_timeout=3600"), MemoryEntries())
        await world.begin()
        try:
            app = application(CallGuard("x"))
            app.add_routes(Routes(world.controller).table())
            routes, address = routes_of(app), world._served.address
            results = await send_all(address, routes, 3, COUNT)
            assert not bad(results) and all(200 not in counts for counts in results.values())
            await send_endless_requests(address, routes, monkeypatch, is_open=False)
            assert not world.life.done()
        finally:
            await world.end()

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert "Traceback" not in caplog.text
