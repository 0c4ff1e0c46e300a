"""Whatever is thrown at a route of a server or of the controller ends in an answer, and changes nothing for the run."""

import asyncio
import logging
import os
from pathlib import Path

import pytest

from areal_like.process.http import application
from areal_like.process.identity import Guard
from areal_like.rollout.controller.app import Routes
from tests import attendant_world, embedded_servers
from tests.controller_world import World, make_run
from tests.hostile import routes_of, throw_all
from tests.tiny_models import tiny_qwen3

pytestmark = pytest.mark.hypothesis  # `.ci/run --full` throws 10,000 at each route
FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"
COUNT = 10_000 if FULL else 300
SERVER_ERRORS = (500, 501, 502, 504)


def bad(found: dict[tuple[str, str], dict[int, int]]) -> dict[tuple[str, str], dict[int, int]]:
    return {route: counts for route, counts in found.items() if set(counts) & set(SERVER_ERRORS)}


@pytest.mark.timeout(3600 if FULL else 300)
@pytest.mark.parametrize("is_open", [True, False])
def test_the_embedded_server_answers_and_generates_the_same(
    tmp_path: Path, is_open: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with embedded_servers.running(is_open=is_open) as client:
            weights = embedded_servers.published(tmp_path, 1, tiny_qwen3(1))
            await client.call("POST", "/control/update_weights", weights)
            before = await client.generate(embedded_servers.group("g"))
            routes = routes_of(client.server.application())
            assert ("POST", "/v1/completions") in routes and ("POST", "/generate") in routes
            found = await throw_all(client.address, routes, 1, COUNT if is_open else COUNT // 10)
            assert not bad(found)
            for (_, path), counts in found.items():
                if path.startswith(("/control/", "/generate")):
                    assert 200 not in counts, path
            assert await client.generate(embedded_servers.group("g")) == before
            assert not client.server.streams.broken.done() and client.engine.counts.recomputed == 0

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert "Traceback" not in caplog.text


@pytest.mark.timeout(3600 if FULL else 300)
def test_the_server_before_an_engine_of_others_answers_and_generates_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        engine = attendant_world.TinyEngine()
        async with embedded_servers.running() as behind, attendant_world.running(tmp_path, engine) as client:
            proxy = client.server._proxy
            proxy._address, proxy._headers = behind.address, {"Authorization": f"Bearer {embedded_servers.SECRET}"}
            await client.update(tmp_path, 1, 1)
            before = await client.generate(attendant_world.group("g"))
            found = await throw_all(client.address, routes_of(client.server.application()), 2, COUNT)
            assert not bad(found)
            assert await client.generate(attendant_world.group("g")) == before
            assert not behind.server.streams.broken.done()

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert "Traceback" not in caplog.text


@pytest.mark.timeout(3600 if FULL else 300)
def test_the_controller_refuses_strangers_and_lives(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        from areal_like.discovery import MemoryStore

        world = World(make_run(tmp_path / "run"), MemoryStore())
        await world.begin()
        try:
            app = application(Guard("x"))
            app.add_routes(Routes(world.controller).table())
            routes, address = routes_of(app), world._served.address
            found = await throw_all(address, routes, 3, COUNT)
            assert not bad(found) and all(200 not in counts for counts in found.values())
            assert not world.life.done()
        finally:
            await world.end()

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert "Traceback" not in caplog.text
