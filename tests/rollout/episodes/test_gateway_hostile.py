"""Hostile requests on every route of the gateway are answered, cost no episode anything, and are not trained on."""

import asyncio
import functools
import io
import logging
from typing import Any

import aiohttp
import pytest

from areal_like.process import connection_limits
from areal_like.process.request_checks import BodyLimits
from areal_like.rollout.episodes.gateway import gateway
from areal_like.rollout.episodes.gateway.gateway import LIMITS, ROUTES, Endpoint
from tests.support.agents import AgentClient, SampledTexts, open_session, user
from tests.support.chat_models import chat_tokenizer
from tests.support.hostile_requests import COUNT, FULL, NONE, bad, send_all, send_slowly

pytestmark = pytest.mark.hypothesis  # `.ci/run --full` throws 10,000 at each route
CHAT, SLOW_COUNT = "/v1/chat/completions", 40 if FULL else 4
SHORT = functools.partial(BodyLimits, of_others_s=0.2)


class Patient(SampledTexts):
    """Answers whatever is asked."""

    async def generate(self, route: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
        self.texts = ["2"] * group["n"]
        return await super().generate(route, group)


def at_gateway(tmp_path: Any, agent: Any) -> None:
    """The agent is given the address and the routes of one episode, while another one plays beside it."""
    engine = Patient(chat_tokenizer(tmp_path / "chat"))

    async def run() -> None:
        async with aiohttp.ClientSession() as http, open_session(engine) as (session, endpoint):
            async with open_session(engine) as (beside, other):
                client = AgentClient(other, http)
                assert (await client.post(CHAT, {"messages": [user("1+1")]}))[0] == 200
                address, _, name = endpoint.url.removeprefix("http://").partition("/")
                routes = [(method, f"/{name}{path}") for method, path, _ in ROUTES]
                await agent(http, endpoint, address, routes)
                assert (await client.post(CHAT, {"messages": [user("1+1")]}))[0] == 200
                (one, two) = beside.trajectory(1.0)
                assert one.token_ids.tolist() == two.token_ids.tolist()
            if session.last_answer is not None:
                engine.check_exact(session.trajectory(1.0))

    asyncio.run(run())


@pytest.mark.timeout(3600 if FULL else 300)
@pytest.mark.parametrize("has_key", [True, False])
def test_every_route_answers_hostile_requests_with_or_without_the_key(tmp_path, has_key, caplog):
    async def agent(http: Any, endpoint: Endpoint, address: str, routes: list[tuple[str, str]]) -> None:
        heads = [f"Authorization: Bearer {endpoint.key}"] if has_key else []
        results = await send_all(address, routes, 5, COUNT if has_key else COUNT // 10, heads)
        assert not bad(results)
        statuses = {status for counts in results.values() for status in counts}
        assert 200 in statuses if has_key else statuses <= {NONE, 400, 401, 403, 404, 417}, statuses

    with caplog.at_level(logging.ERROR):
        at_gateway(tmp_path, agent)
    assert "Traceback" not in caplog.text


def test_every_route_ends_headers_and_bodies_that_never_end(tmp_path, monkeypatch):
    monkeypatch.setattr(connection_limits, "HEADERS_TIMEOUT_S", 20.0 if FULL else 0.2)
    monkeypatch.setattr(gateway, "LIMITS", SHORT(of_others=LIMITS.of_others))

    async def agent(http: Any, endpoint: Endpoint, address: str, routes: list[tuple[str, str]]) -> None:
        results = await send_slowly(address, routes, 6, SLOW_COUNT, [f"Authorization: Bearer {endpoint.key}"])
        assert not bad(results)
        assert {NONE, 408} <= {status for counts in results.values() for status in counts}

    at_gateway(tmp_path, agent)


def test_a_body_above_sixteen_megabytes_is_refused_on_every_route(tmp_path):
    """With its length in a header, and without."""

    async def agent(http: Any, endpoint: Endpoint, address: str, routes: list[tuple[str, str]]) -> None:
        headers = {"Authorization": f"Bearer {endpoint.key}", "Content-Type": "application/json"}
        content = b'{"messages": "' + b"x" * LIMITS.of_others + b'"}'

        async def in_parts() -> Any:
            for at in range(0, len(content), 1 << 16):
                yield content[at : at + (1 << 16)]

        for method, path in routes:
            if method != "POST":
                continue
            for data in (io.BytesIO(content), in_parts()):
                async with http.post(f"http://{address}{path}", data=data, headers=headers) as response:
                    assert response.status == 413, path

    at_gateway(tmp_path, agent)
