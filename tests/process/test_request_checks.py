"""Checks of each request before its route: browsers, sizes, encodings, timeouts, the token."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from areal_like.process import connection_limits
from areal_like.process.http import application, json_response, read_json, serve
from areal_like.process.identity import CallGuard
from areal_like.process.request_checks import BodyLimits

LIMITS = BodyLimits(of_run=4000, of_others=1000, of_others_s=0.2)
LIMIT_S = 30.0


async def echo(request: web.Request) -> web.Response:
    return json_response(await read_json(request))


def serving(test: Callable[[str], Awaitable[None]]) -> None:
    async def main() -> None:
        app = application(CallGuard("secret"), ("/open",), ("/keyed",), LIMITS)
        app.add_routes([web.post(path, echo) for path in ("/open", "/keyed", "/closed")])
        app.add_routes([web.get("/open", echo)])
        served = await serve(app, "127.0.0.1")
        try:
            await asyncio.wait_for(test(served.address), LIMIT_S)
        finally:
            await served.close()

    asyncio.run(main())


async def status(address: str, head: bytes, body: bytes = b"{}", length: int | None = None) -> int:
    """Of the answer to these bytes; 0 where the connection is closed without one."""
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        size = len(body) if length is None else length
        writer.write(head + f"\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n".encode() + body)
        line = await reader.readline()
        return int(line.split()[1]) if line else 0
    except ConnectionError:
        return 0
    finally:
        writer.close()


def asking(
    address: str, path: str = "/open", *more: str, host: str | None = None, kind: str = "application/json"
) -> bytes:
    lines = (f"POST {path} HTTP/1.1", f"Host: {address if host is None else host}", f"Content-Type: {kind}", *more)
    return "\r\n".join(lines).encode()


def test_a_web_page_of_another_site_is_refused() -> None:
    async def test(address: str) -> None:
        port = address.partition(":")[2]
        for host in (address, "127.0.0.1", f"localhost:{port}", "LOCALHOST", "127.0.0.2:80", "[::1]:80"):
            assert await status(address, asking(address, host=host)) == 200, host
        for host in (
            "evil.example",
            f"evil.example:{port}",
            "10.0.0.1",
            "",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
        ):
            assert await status(address, asking(address, host=host)) == 403, host
        for more in ("Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site", "Host: evil.example"):
            assert await status(address, asking(address, "/open", more)) in (400, 403), more
        assert await status(address, asking(address, "/open", f"Origin: http://{address}")) == 200
        own = ("Authorization: Bearer secret", "X-Areal-Attempt: 1", "X-Areal-Incarnation: 1")
        assert await status(address, asking(address, "/closed", *own, host="through.a.tunnel")) == 200

    serving(test)


def test_clients_may_send_only_uncompressed_json() -> None:
    async def test(address: str) -> None:
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/json2"):
            assert await status(address, asking(address, kind=kind)) == 415, kind
        assert await status(address, asking(address, kind="application/json; charset=utf-8")) == 200
        assert await status(address, asking(address, "/open", "Content-Encoding: gzip")) == 415
        assert await status(address, asking(address), b"\xff\xfe") == 400

    serving(test)


def test_the_size_limit_of_a_body_depends_on_the_client() -> None:
    async def test(address: str) -> None:
        long = b'"' + b"x" * 2000 + b'"'
        own = ("Authorization: Bearer secret", "X-Areal-Attempt: 1", "X-Areal-Incarnation: 1")
        assert await status(address, asking(address), long) == 413
        assert await status(address, asking(address, "/keyed", own[0]), long) == 413
        assert await status(address, asking(address, "/closed", *own), long) == 200
        assert await status(address, asking(address), b"", length=1 << 40) == 413
        chunked = asking(address, "/open", "Transfer-Encoding: chunked", "Connection: close") + b"\r\n\r\n"
        host, _, port = address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(chunked + b"7d0\r\n" + b"x" * 2000 + b"\r\n0\r\n\r\n")
        assert b" 413 " in await reader.readline()
        writer.close()

    serving(test)


def test_a_stalled_request_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "HEADERS_TIMEOUT_S", 0.2)

    async def test(address: str) -> None:
        assert await status(address, asking(address), b"{", length=100) == 408
        for first in (b"", b"POST /open HTTP/1.1\r\nHost:"):
            reader, writer = await asyncio.open_connection(*address.split(":"))
            writer.write(first)
            with pytest.raises(ConnectionError):
                raise ConnectionError if await reader.read() == b"" else AssertionError
            writer.close()

    serving(test)


def test_unknown_clients_have_a_connection_limit_apart_from_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_limits, "MAX_UNKNOWN", 16)

    async def test(address: str) -> None:
        own = b"\r\n".join(
            (
                asking(address, "/closed", "Authorization: Bearer secret", "X-Areal-Attempt: 1"),
                b"X-Areal-Incarnation: 1",
            )
        )
        mine = await asyncio.open_connection(*address.split(":"))
        others = []
        for round in range(2):
            mine[1].write(own + b"\r\nContent-Length: 2\r\n\r\n{}")
            assert b" 200 " in await mine[0].readline()
            await mine[0].readuntil(b"{}")
            others += [await asyncio.open_connection(*address.split(":")) for _ in range(20 * (1 - round))]
        with pytest.raises(ConnectionError):
            raise ConnectionError if await others[0][0].read() == b"" else AssertionError
        for _, writer in (mine, *others):
            writer.close()

    serving(test)


def test_silent_clients_that_connect_all_at_once_time_out_beyond_the_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limits, "MAX_UNKNOWN", 16)
    monkeypatch.setattr(connection_limits, "HEADERS_TIMEOUT_S", 0.2)

    async def test(address: str) -> None:
        connect = (asyncio.open_connection(*address.split(":")) for _ in range(60))
        clients = await asyncio.gather(*connect)
        async with asyncio.timeout(30):
            for reader, writer in clients:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
                writer.close()

    serving(test)


def test_a_failure_after_the_client_has_gone_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    arrived = asyncio.Event()

    async def fail_late(request: web.Request) -> web.Response:
        arrived.set()
        while request.transport is not None:
            await asyncio.sleep(0.01)
        raise RuntimeError("nobody reads this")

    async def main() -> None:
        app = application(None)
        app.add_routes([web.get("/late", fail_late)])
        served = await serve(app, "127.0.0.1")
        _, writer = await asyncio.open_connection(*served.address.split(":"))
        writer.write(b"GET /late HTTP/1.1\r\nHost: " + served.address.encode() + b"\r\n\r\n")
        await arrived.wait()
        writer.transport.abort()
        while "the connection is closed" not in caplog.text:
            await asyncio.sleep(0.01)
        await served.close()

    with caplog.at_level(logging.DEBUG):
        asyncio.run(asyncio.wait_for(main(), LIMIT_S))
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("shown", [b"Bearer \xff\xfe", b"Bearer \xc3\xa9", b"", b"Bearer secret2", b"secret"])
def test_a_wrong_token_of_any_bytes_is_a_401_and_no_traceback(shown: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def test(address: str) -> None:
        for path in ("/closed", "/keyed"):
            assert await status(address, asking(address, path) + b"\r\nAuthorization: " + shown) == 401
        assert await status(address, asking(address, "/keyed", "Authorization: Bearer secret")) == 200
        assert await status(address, asking(address, "/closed", "Authorization: Bearer secret")) == 400

    with caplog.at_level(logging.WARNING):
        serving(test)
    assert "Traceback" not in caplog.text


def test_invalid_http_gives_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    async def test(address: str) -> None:
        for head in (
            b"\x16\x03\x01\x02\x00",
            b"POST /open HTTP/9.9",
            b"POST /open HTTP/1.1\r\nA B: c",
            b"G\x00T / HTTP/1.1",
        ):
            assert await status(address, head) in (0, 400, 505)
        assert await status(address, asking(address)) == 200

    serving(test)
    assert "Traceback" not in caplog.text


def test_a_call_that_ends_with_its_server_leaves_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        begun, may_continue = asyncio.Event(), asyncio.Event()

        async def hold(request: web.Request) -> web.Response:
            begun.set()
            await may_continue.wait()
            return json_response({})

        app = application(None)
        app.add_routes([web.post("/hold", hold)])
        served = await serve(app, "127.0.0.1")
        request = asyncio.create_task(status(served.address, asking(served.address, "/hold")))
        await begun.wait()
        closing = asyncio.create_task(served.close())
        server: Any = served._runner._server
        while not any(protocol._handler_waiter for protocol in server.connections):
            await asyncio.sleep(0)
        may_continue.set()
        closing.cancel()
        await asyncio.wait([closing, request])

    asyncio.run(main())
    assert not [record for record in caplog.records if record.exc_info], caplog.text
