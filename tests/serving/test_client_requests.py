"""Public clients of an external engine never delay the run."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from areal_like.process.http import serve
from areal_like.serving import public_proxy
from areal_like.serving.client_filter import count_sequences
from areal_like.serving.client_queue import CLIENT_SHARE
from areal_like.serving.control_protocol import GENERATE_PATHS, TOKENIZE_PATHS
from areal_like.serving.engines.base import MAX_IN_FLIGHT
from areal_like.serving.requests import CLIENT_PRIORITY
from tests.support.external_server import Client, TinyEngine, group, running, until

PART = b"data: " + b"x" * 65000 + b"\n\n"
NAMED = {
    "rid": "g0-0#0#0#",
    "request_id": "g0-0",
    "lora_path": "v000001",
    "bootstrap_host": "somewhere",
    "session_params": {"id": "s"},
    "kv_transfer_params": {"do_remote_prefill": True},
}


HUGE = 1 << 63
PROMPTS: tuple[Any, ...] = ([HUGE], [-1], ["a", 5], [[[5]]], [5] * 100, "x" * 10_000, 5, {})
BAD = (
    *({"n": n} for n in (0, -1, 129, HUGE, 1.5, "2", True)),
    *({"max_tokens": n} for n in (-1, HUGE, "many")),
    *({"min_tokens": n} for n in (-1, HUGE)),
    *({"sampling_params": {key: HUGE}} for key in ("min_tokens", "n", "logprobs", "top_k", "whatever")),
    *({"temperature": t} for t in (1e-50, -1, 3, "hot")),
    *({"repetition_penalty": p} for p in (1e-50, 0, 1e9)),
    *({"prompt": p} for p in PROMPTS),
    {"stop": ["x"] * 1000},
    {"stop": "x" * 5000},
    {"stop_token_ids": [HUGE]},
    {"logit_bias": {str(n): 1 for n in range(5000)}},
    {"guided_regex": "(a*)*b"},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
    {"sampling_params": 5},
    {"messages": [{"role": "user", "content": "x" * 2048}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 1000}] * 3}]},
    {"messages": [{"role": "user", "content": "x"} for _ in range(200)]},
    {"tools": [{"type": "function", "function": {"name": "f", "description": "x" * 3000}}]},
    {"chat_template_kwargs": {"x": [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]}},
)


class VerboseEngine:
    """An engine that streams `parts` parts, or answers at once, and records its requests."""

    def __init__(self) -> None:
        self.parts = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.bodies: list[Any] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        await self.answers.wait()
        if not self.parts:
            return web.json_response({"choices": []})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(self.parts):
            await response.write(PART)
        return response


def with_proxied_engine(root: Path, test: Callable[[Client, VerboseEngine], Awaitable[None]]) -> None:
    async def main() -> None:
        engine, app = VerboseEngine(), web.Application()
        app.router.add_route("*", "/{path:.*}", engine.answer)
        behind = await serve(app, "127.0.0.1")
        try:
            async with running(root, TinyEngine()) as client:
                client.engine.proxy._address = behind.address
                await asyncio.wait_for(test(client, engine), 60)
        finally:
            await behind.close()

    asyncio.run(main())


@asynccontextmanager
async def connected(client: Client, sent: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """A client that has sent this, and has a tiny receive buffer until it reads."""
    host, _, port = client.address.rpartition(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    try:
        writer.write(sent)
        await writer.drain()
        yield reader
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


def raw_completion(body: bytes, length: int | None = None) -> bytes:
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length or len(body)}\r\nConnection: close\r\n\r\n".encode() + body


async def post(client: Client, path: str, body: Any) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{client.address}{path}", json=body) as response,
    ):
        return response.status


def test_a_client_that_does_not_read_delays_no_update_and_gets_its_answer_later(tmp_path: Path) -> None:
    async def test(client: Client, engine: VerboseEngine) -> None:
        engine.parts = 100
        async with connected(client, raw_completion(b"{}")) as reader:
            await until(lambda: bool(engine.bodies))
            done = await asyncio.wait_for(client.update(tmp_path, 1, 1, mode="wait"), 60)
            assert done["version"] == 1 and client.server.queue.running == 0
            whole = await reader.read(-1)
            assert len(whole) > 100 * len(PART) and whole.endswith(b"0\r\n\r\n")

    with_proxied_engine(tmp_path, test)


def test_a_client_that_never_reads_is_cut_off_and_sees_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_proxy, "WRITE_TIMEOUT_S", 0.3)
    cut = public_proxy.StreamRelay._cut_off
    cut_off: list[public_proxy.StreamRelay] = []

    def noted(self: public_proxy.StreamRelay) -> None:
        cut_off.append(self)
        cut(self)

    monkeypatch.setattr(public_proxy.StreamRelay, "_cut_off", noted)

    async def test(client: Client, engine: VerboseEngine) -> None:
        engine.parts = 100
        async with connected(client, raw_completion(b"{}")) as reader:
            await until(lambda: bool(engine.bodies) and client.server.queue.running == 0)
            await until(lambda: bool(cut_off))
            with pytest.raises(ConnectionError):
                raise ConnectionError if not (await reader.read(-1)).endswith(b"0\r\n\r\n") else AssertionError

    with_proxied_engine(tmp_path, test)


def test_the_buffer_for_a_slow_client_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_proxy, "MAX_UNREAD_BYTES", 1 << 20)

    async def test(client: Client, engine: VerboseEngine) -> None:
        engine.parts = 10**6
        async with connected(client, raw_completion(b"{}")):
            await until(lambda: bool(engine.bodies))
            await until(lambda: client.server.queue.running == 0)

    with_proxied_engine(tmp_path, test)


def test_an_unfinished_request_takes_no_place_in_the_queue(tmp_path: Path) -> None:
    async def test(client: Client, engine: VerboseEngine) -> None:
        async with connected(client, raw_completion(b"{", length=1000)):
            await asyncio.sleep(0.3)
            assert client.server.queue.running == 0
            assert (await asyncio.wait_for(client.update(tmp_path, 1, 1, mode="wait"), 60))["version"] == 1

    with_proxied_engine(tmp_path, test)


@pytest.mark.parametrize("path", [*GENERATE_PATHS, *TOKENIZE_PATHS])
def test_a_public_client_can_name_no_request_no_adapter_and_no_process(tmp_path: Path, path: str) -> None:
    async def test(client: Client, engine: VerboseEngine) -> None:
        inner = {"temperature": 0.5, "extra_args": {"kv_transfer_params": {}}}
        sent = {"model": "m", "prompt": [5, 9], "priority": -5, "sampling_params": inner, **NAMED}
        assert await post(client, path, sent) == 200
        kept = {"model": "m", "prompt": [5, 9], "sampling_params": {"temperature": 0.5}}
        assert engine.bodies == [kept | {"priority": CLIENT_PRIORITY if path in GENERATE_PATHS else -5}]
        for bad in ([1], "x", None, *BAD):
            assert await post(client, path, bad) == 400, bad
        assert len(engine.bodies) == 1

    with_proxied_engine(tmp_path, test)


@pytest.mark.parametrize(
    ("sent", "count"),
    [
        ({}, 1),
        ({"prompt": [5, 9], "n": 3}, 3),
        ({"prompt": ["a", "b"], "n": 3}, 6),
        ({"prompt": [[5], [9]], "n": 2, "best_of": 4}, 8),
        ({"token_ids": [5, 9], "sampling_params": {"n": 5}}, 5),
        ({"prompt": ["a", "b"], "n": 5, "sampling_params": {"temperature": 1}}, 10),
    ],
)
def test_sequences_are_prompts_times_answers(sent: dict[str, Any], count: int) -> None:
    assert count_sequences(sent) == count


def test_one_request_takes_at_most_the_share_of_clients(tmp_path: Path) -> None:
    async def test(client: Client, engine: VerboseEngine) -> None:
        many = {"prompt": [[5]] * 32, "n": 128}
        assert await post(client, GENERATE_PATHS[0], many) == 200
        await client.update(tmp_path, 1, 1)
        await client.generate(group("g", max_new_tokens=1))
        clients = client.engine.proxy._clients
        assert clients.limit == MAX_IN_FLIGHT // CLIENT_SHARE
        for n, status in ((128, 400), (9, 400), (8, 200)):
            assert await post(client, GENERATE_PATHS[0], many | {"n": n}) == status, n
        assert len(engine.bodies) == 2 and (clients.running, clients.waiting) == (0, 0)

    with_proxied_engine(tmp_path, test)


def test_the_run_goes_before_public_clients_that_came_first(tmp_path: Path) -> None:
    async def test(client: Client, engine: VerboseEngine) -> None:
        await client.update(tmp_path, 1, 1)
        client.server.queue._max_running = 1
        await client.call("POST", "/control/pause", {"mode": "wait"})
        ends: list[str] = []
        strangers = [asyncio.create_task(post(client, GENERATE_PATHS[0], {})) for _ in range(3)]
        for one in strangers:
            one.add_done_callback(lambda _: ends.append("stranger"))
        await until(lambda: client.server.queue.waiting == 3)
        ours = asyncio.create_task(client.generate(group("g", max_new_tokens=1) | {"priority": 1 << 40}))
        ours.add_done_callback(lambda _: ends.append("run"))
        await until(lambda: client.server.queue.waiting == 4)
        await client.call("POST", "/control/resume")
        await asyncio.gather(ours, *strangers)
        assert client.engine.requests and ends[0] == "run", ends

    with_proxied_engine(tmp_path, test)


def test_a_clients_request_that_the_engine_does_not_answer_ends_at_a_named_limit(tmp_path: Path) -> None:
    async def test(client: Client, engine: VerboseEngine) -> None:
        engine.answers.clear()
        client.engine.proxy._access.request_timeout_s = 0.1
        url = f"http://{client.address}/v1/completions"
        async with client.session.post(url, json={"prompt": "a", "max_tokens": 1}) as response:
            error = (await response.json())["error"]["message"]
        assert (response.status, error) == (503, "the engine did not answer within 0.1 s (rollout.request_timeout)")
        engine.answers.set()

    with_proxied_engine(tmp_path, test)
