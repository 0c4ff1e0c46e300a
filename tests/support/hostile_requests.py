"""Malicious requests, random by seed, for each route of a server: types, sizes, encodings, headers, half-closed
connections and bodies that never end."""

import asyncio
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import orjson
from aiohttp import web

HUGE = (1 << 63, -(1 << 63), (1 << 64) - 1, 1 << 31, -1, 0, 1e308, -1e-308, 1e-50)
KEYS = (
    *("prompt", "token_ids", "tokens", "messages", "sampling_params", "n", "seed", "max_tokens", "min_tokens", "stop"),
    *("max_completion_tokens", "max_output_tokens"),
    *(
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "frequency_penalty",
        "stop_token_ids",
        "logprobs",
    ),
    *("prompt_logprobs", "priority", "model", "request_id", "echo", "groups", "ids", "mode", "version", "step", "rank"),
    *(
        "world",
        "worker",
        "lease",
        "want",
        "results",
        "datasets",
        "early",
        "group",
        "transport",
        "folder",
        "index",
        "name",
    ),
)
KINDS = (*["application/json"] * 8, "text/plain", "multipart/form-data", "application/octet-stream", "")
HOSTS = ("evil.example", "127.0.0.1", "localhost", "", "[::1]", "127.0.0.1.evil.example", "\xff")
ANSWER_S = 60.0
"""Only against hanging."""
NONE, HUNG = 0, -1
"""Instead of a status."""
SERVER_ERRORS = (500, 501, 502, 504)
TRICKLE_S = 0.02
LENGTH, CLOSES = re.compile(rb"(?i)\r\ncontent-length: *(\d+)"), re.compile(rb"(?i)\r\nconnection: *close|^HTTP/1\.0")
EFFORT = os.environ.get("HYPOTHESIS_PROFILE", "ci")
FULL = EFFORT in ("full", "night")
COUNT = {"full": 10_000, "night": 100_000}.get(EFFORT, 300)
"""Requests per route."""


class Case(NamedTuple):
    """What is written to a socket. Then the answer is read, or the connection is half-closed, or dropped without
    waiting, or it trickles on without an end until the server has enough of it."""

    sent: bytes
    half_closed: bool = False
    dropped: bool = False
    endless: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the connection can be used again."""
        return not (self.half_closed or self.dropped or self.endless)


def routes_of(app: web.Application) -> list[tuple[str, str]]:
    """Method and path from the router, so that new routes are covered."""
    results = [(route.method, route.resource.canonical) for route in app.router.routes() if route.resource]
    return sorted({(method, path) for method, path in results if method != "HEAD"})


def bad(results: dict[tuple[str, str], dict[int, int]]) -> dict[tuple[str, str], dict[int, int]]:
    """Routes that answered with a server error, or not at all on an open connection."""
    return {route: counts for route, counts in results.items() if set(counts) & {*SERVER_ERRORS, HUNG}}


def value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(9)
    if kind == 0:
        return chance.choice(HUGE)
    if kind == 1:
        return chance.choice(
            (None, True, False, "", "x" * chance.choice((1, 100, 20_000)), "\x00", "\N{GRINNING FACE}")
        )
    if kind == 2:
        return chance.random() * 10 ** chance.randrange(-50, 300)
    if kind == 3:
        return chance.choices((5, 9, -1, 1 << 40, "5", None, 2.5), k=chance.choice((0, 1, 3, 3, 3, 500)))
    if kind < 6 and depth < 3:
        return {chance.choice(KEYS): value(chance, depth + 1) for _ in range(chance.randrange(8))}
    if kind == 6 and depth < 3:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 7:
        return [5, 9, 13]
    return chance.randrange(-3, 70)


def body(chance: random.Random) -> bytes:
    """Mostly JSON."""
    kind = chance.randrange(12)
    if kind == 0:
        return chance.randbytes(chance.choice((1, 50, 5000)))
    if kind == 1:
        return b"[" * chance.choice((10, 100_000))
    if kind == 2:
        return b'{"prompt": "\\ud800"}' if chance.random() < 0.5 else b'{"n": NaN, "seed": 1e999}'
    if kind == 3 and chance.random() < 0.1:
        return b"x" * (3 << 20)
    if chance.random() < 0.4:
        return orjson.dumps({chance.choice(KEYS): value(chance) for _ in range(chance.randrange(1, 12))})
    sampling: dict[str, Any] = {"max_tokens": 2}
    whole: dict[str, Any] = {"token_ids": [5, 9], "prompt": [5, 9], "max_tokens": 2, "sampling_params": sampling}
    whole["messages"] = [{"role": "user", "content": "12"}]
    chance.choice((whole, sampling))[chance.choice(KEYS)] = value(chance)  # one thing alone is wrong
    return orjson.dumps(whole)


def case(chance: random.Random, method: str, path: str, address: str, heads: Sequence[str] = ()) -> Case:
    content = body(chance)
    lines = [f"{method} {path}{chance.choice(('', '', '', '?x=%00', '/../control/pause'))} HTTP/1.1"]
    lines.append(f"Host: {address if chance.random() < 0.8 else chance.choice(HOSTS)}")
    lines.append(f"Content-Type: {chance.choice(KINDS)}")
    lines += heads
    if chance.random() < 0.2:
        lines.append(chance.choice(("Origin: http://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site")))
    if not heads and chance.random() < 0.3:
        lines.append(f"Authorization: {chance.choice(('Bearer x', 'Bearer ' + chr(255), 'Basic !', chr(0x80) * 100))}")
    if chance.random() < 0.1:
        lines.append(chance.choice(("Content-Encoding: gzip", "Expect: nonsense", "X: " + "y" * 9000, "Upgrade: h2c")))
    end = chance.random()
    if end < 0.06:
        lines.append("Transfer-Encoding: chunked")
        content = b'5\r\n{"n":\r\n' if end < 0.03 else b"zz\r\n" + content[:100]
    elif end < 0.12:
        lines.append(f"Content-Length: {chance.choice((len(content) + 100, 1 << 40, -1, 'x'))}")
    else:
        lines.append(f"Content-Length: {len(content)}")
    sent = _written(lines, content)
    is_part = end < 0.12
    if chance.random() < 0.05:
        sent, is_part = sent[: chance.randrange(1, len(sent))], True
    return Case(sent, half_closed=is_part or chance.random() < 0.05, dropped=chance.random() < 0.1)


def slow_case(chance: random.Random, method: str, path: str, address: str, heads: Sequence[str] = ()) -> Case:
    """Endless headers, or an endless body with or without a length."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {address}", "Content-Type: application/json", *heads]
    kind = chance.randrange(3)
    if kind == 0:
        return Case("\r\n".join((*lines, "X: y")).encode("latin-1"), endless=True)
    if kind == 1:
        return Case(_written([*lines, f"Content-Length: {1 << 19}"], b'{"prompt": "'), endless=True)
    return Case(_written([*lines, "Transfer-Encoding: chunked"], b"fffff\r\n{"), endless=True)


def _written(lines: Sequence[str], content: bytes) -> bytes:
    return "\r\n".join((*lines, "", "")).encode("latin-1") + content


class Connection:
    """A connection to one address, reopened after the server or a case has closed it."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def throw(self, one: Case) -> int:
        """Status of the answer; NONE where there was none, and HUNG where the server did not even close. What is not
        whole is half-closed or dropped, so that nothing waits."""
        is_used = self._streams is not None
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        is_reusable, status = False, NONE
        try:
            async with asyncio.timeout(ANSWER_S):
                status, is_reusable = await _answer(*self._streams, one)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        except TimeoutError:
            return HUNG
        except OSError:
            pass  # the server has closed the connection, which a half-close of ours says as well
        finally:
            if not is_reusable:
                self.close()
        # The server may have closed after the answer before.
        return await self.throw(one) if is_used and status == NONE and one.is_whole else status

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, one: Case) -> tuple[int, bool]:
    """The status, and whether the connection is as it was before."""
    writer.write(one.sent)
    if one.dropped:
        return NONE, False
    if one.half_closed and writer.can_write_eof():
        writer.write_eof()
    if one.endless:
        return await _trickle(reader, writer), False
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(None, 2)[1])
    length = LENGTH.search(head)
    if not one.is_whole or length is None or CLOSES.search(head):
        return status, False
    await reader.readexactly(int(length[1]))
    return status, True


async def _trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    line = asyncio.ensure_future(reader.readline())
    try:
        while not line.done():
            await asyncio.wait([line], timeout=TRICKLE_S)
            writer.write(b"x")
        words = line.result().split()
    finally:
        line.cancel()
    return int(words[1]) if len(words) > 1 else NONE


async def send_all(
    address: str,
    routes: Iterable[tuple[str, str]],
    seed: int,
    count: int,
    heads: Sequence[str] = (),
    at_once: int = 8,
    make: Callable[..., Case] = case,
) -> dict[tuple[str, str], dict[int, int]]:
    """Sends this many requests to each route; returns the count of each status."""
    results: dict[tuple[str, str], dict[int, int]] = {}

    async def some(counts: dict[int, int], cases: Iterator[Case]) -> None:
        connection = Connection(address)
        try:
            for one in cases:
                status = await connection.throw(one)
                counts[status] = counts.get(status, 0) + 1
        finally:
            connection.close()

    for method, path in routes:
        chance = random.Random(f"{seed} {method} {path}")
        cases = (make(chance, method, path, address, heads) for _ in range(count))
        counts = results.setdefault((method, path), {})
        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, count)):
                group.create_task(some(counts, cases))
    return results


async def send_slowly(
    address: str, routes: Iterable[tuple[str, str]], seed: int, count: int, heads: Sequence[str] = ()
) -> dict[tuple[str, str], dict[int, int]]:
    """Endless requests at all routes at once: each takes the server's time limit, but no work."""
    each = (send_all(address, [route], seed, count, heads, count, slow_case) for route in routes)
    return {route: counts for some in await asyncio.gather(*each) for route, counts in some.items()}
