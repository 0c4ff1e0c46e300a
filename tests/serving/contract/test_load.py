"""Many requests at once on every engine, during updates and after a server is killed: all are answered."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from areal_like.process.identity import call_headers
from areal_like.serving.control_protocol import CLIENT_PATHS, GENERATE_PATHS, OPEN_PATHS
from tests.support.engine_answers import (
    PARITY,
    SLOW,
    WITHOUT_CLIENTS,
    check_in_flight,
    keep_in_flight,
    largest_gap,
    long_groups,
)
from tests.support.engine_environments import EXTERNAL, slow_on
from tests.support.engines import SECRET, LiveServer, started
from tests.support.hostile_requests import COUNT, FULL, bad, send_all
from tests.support.server_session import WORKER, ServerSession, group, in_session, open_session

IN_FLIGHT, UPDATES, CONNECTIONS = 256, 10, 1000
TOKENS = 64
HOSTILE = COUNT
"""Requests at each route."""


@slow_on(*EXTERNAL)
def test_256_requests_in_flight_cross_ten_updates_and_none_is_lost(server: LiveServer) -> None:
    """Each of 256 clients asks for one answer after the other until the tenth version is served. An engine that is not
    made for load gets fewer."""
    count, updates = (IN_FLIGHT // 32, 2) if server.engine in SLOW else (IN_FLIGHT, UPDATES)

    async def test(one: ServerSession) -> None:
        answered, seeds = await keep_in_flight(one, count, updates, TOKENS, pause_s=0.2)
        assert check_in_flight(answered, seeds, count, TOKENS) <= PARITY
        results = await one.get("/control/statistics")
        assert results["running"] == results["waiting"] == 0

    in_session(server, test, limit_s=240)


@slow_on(*EXTERNAL)
def test_a_thousand_connections_are_all_answered(server: LiveServer) -> None:
    count = CONNECTIONS // 20 if server.engine in SLOW else CONNECTIONS

    async def test(one: ServerSession) -> None:
        await one.serve(1)
        body = {"groups": [group("g", max_new_tokens=2, min_new_tokens=2)]}
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, headers=call_headers(WORKER, SECRET)) as session:

            async def ask() -> int:
                async with session.post(f"http://{one.address}/generate", json=body) as response:
                    line = await response.json(content_type=None)
                    assert "samples" in line, line
                    return len(line["samples"][0]["token_ids"])

            assert await asyncio.gather(*(ask() for _ in range(count))) == [2] * count
        assert (await one.get("/health"))["status"] == "ok"

    in_session(server, test)


@pytest.mark.timeout(7200 if FULL else 600)
def test_hostile_requests_by_clients_with_the_key_do_not_change_answers(server: LiveServer) -> None:
    """At each route for clients; the key lets them through to the engine itself."""

    if server.engine in WITHOUT_CLIENTS:
        pytest.skip(f"{server.engine} has no routes for clients")

    async def test(one: ServerSession) -> None:
        await one.serve(1)
        request = group("g", n=2, seed=7, greedy=True, max_new_tokens=12)
        (before,) = await one.generate(request)
        routes = [*(("GET", path) for path in OPEN_PATHS), *(("POST", path) for path in CLIENT_PATHS)]
        count = HOSTILE // 3 if server.engine in EXTERNAL and not FULL else HOSTILE
        results = await send_all(one.address, routes, 5, count, [f"Authorization: Bearer {SECRET}"])
        assert not bad(results), results
        assert 200 in results["POST", GENERATE_PATHS[0]] and 400 in results["POST", GENERATE_PATHS[0]]
        await one.until(lambda answer: answer["running"] == answer["waiting"] == 0)
        (after,) = await one.generate(request)
        assert [sample["token_ids"] for sample in after] == [sample["token_ids"] for sample in before]
        seeds = {server.version: 1}
        assert max(largest_gap(request["prompt"], sample, seeds) for sample in after) <= PARITY
        health = await one.get("/health")
        assert (health["status"], health["version"]) == ("ok", server.version) and server.is_alive()

    in_session(server, test, limit_s=7200 if FULL else 240)


@pytest.mark.xdist_group("embedded")
def test_a_request_is_answered_by_another_server_after_a_kill(tmp_path: Path) -> None:
    """With the same tokens, as both serve the same weights."""
    with started("embedded", tmp_path, count=2) as pair:

        async def test() -> None:
            async with (
                open_session(pair, "server/1") as other,
                open_session(pair, "server/0", others=("server/1",)) as one,
            ):
                body = pair.published(1)
                for each in (one, other):
                    await each.post("/control/update_weights", body)
                request = [group(str(n), n=2, seed=n, min_new_tokens=400, max_new_tokens=400) for n in range(4)]
                answers = asyncio.ensure_future(one.generate(*request))
                await one.until(lambda results: results["running"] > 0)
                os.kill(pair.pid(), signal.SIGKILL)
                results = await answers
                assert [len(sample["token_ids"]) for samples in results for sample in samples] == [400] * 8
                again = await other.generate(*request)
                for mine, theirs in zip(results, again, strict=True):
                    assert [sample["token_ids"] for sample in mine] == [sample["token_ids"] for sample in theirs]

        asyncio.run(asyncio.wait_for(test(), 120))


@slow_on(*EXTERNAL, "plain")
def test_a_killed_server_ends_with_all_its_processes_and_can_start_again(server: LiveServer) -> None:
    """Its clients get an error at once."""

    async def killed(one: ServerSession) -> None:
        await one.serve(1)
        request = long_groups(server, 4)
        answers = asyncio.ensure_future(one.outcomes(*request))
        await one.until(lambda results: results["running"] > 0)
        os.kill(server.pid(), signal.SIGKILL)
        for outcome in await asyncio.wait_for(answers, 60):
            assert "there is no other server" in str(outcome)

    asyncio.run(_with(server, killed))
    server.kill()
    assert server.leftovers() == {}
    server.start()

    async def again(one: ServerSession) -> None:
        await one.update(2)
        assert len(await one.tokens(max_new_tokens=4)) == 1

    in_session(server, again)


async def _with(server: LiveServer, test: Any) -> None:
    async with open_session(server) as one:
        await test(one)
