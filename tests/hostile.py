"""Requests that mean harm, made from a seed for each route of a server: types, sizes, encodings, headers, half-closed
connections and bodies that never end."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import orjson
from aiohttp import web

HUGE = (1 << 63, -(1 << 63), (1 << 64) - 1, 1 << 31, -1, 0, 1e308, -1e-308, 1e-50)
KEYS = (
    *("prompt", "token_ids", "tokens", "messages", "sampling_params", "n", "seed", "max_tokens", "min_tokens", "stop"),
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
KINDS = ("application/json", "text/plain", "multipart/form-data", "application/octet-stream", "", "application/json")
HOSTS = ("evil.example", "127.0.0.1", "localhost", "", "[::1]", "127.0.0.1.evil.example", "\xff")
ANSWER_S = 20.0


class Case(NamedTuple):
    """What is written to a socket, and whether the connection is then half-closed, or dropped without waiting."""

    sent: bytes
    half_closed: bool
    dropped: bool


def routes_of(app: web.Application) -> list[tuple[str, str]]:
    """Method and path, from the router itself: a new route is covered by itself."""
    found = [(route.method, route.resource.canonical) for route in app.router.routes() if route.resource]
    return sorted({(method, path) for method, path in found if method != "HEAD"})


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
        return [chance.choice((5, 9, -1, 1 << 40, "5", None, 2.5)) for _ in range(chance.choice((0, 1, 3, 500)))]
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
    said = {chance.choice(KEYS): value(chance) for _ in range(chance.randrange(1, 12))}
    if chance.random() < 0.5:  # nearly what is asked for
        said |= {"token_ids": [5, 9], "prompt": [5, 9], "max_tokens": 2}
        said["sampling_params"] = {"max_tokens": 2, chance.choice(KEYS): value(chance)}
    return orjson.dumps(said)


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
    if end < 0.1:
        lines.append("Transfer-Encoding: chunked")
        content = b'5\r\n{"n":\r\n' if end < 0.05 else b"zz\r\n" + content[:100]
    elif end < 0.2:
        lines.append(f"Content-Length: {chance.choice((len(content) + 100, 1 << 40, -1, 'x'))}")
    else:
        lines.append(f"Content-Length: {len(content)}")
    sent = "\r\n".join((*lines, "Connection: close", "", "")).encode("latin-1") + content
    is_part = end < 0.2
    if chance.random() < 0.05:
        sent, is_part = sent[: chance.randrange(len(sent))], True
    return Case(sent, half_closed=is_part or chance.random() < 0.1, dropped=chance.random() < 0.2)


async def throw(address: str, one: Case) -> int:
    """Status of the answer; 0 for none. What is not whole is half-closed or dropped, so that nothing waits."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(one.sent)
        if one.dropped:
            return 0
        if one.half_closed and writer.can_write_eof():
            writer.write_eof()
        line = await asyncio.wait_for(reader.readline(), ANSWER_S)
        words = line.split()
        return int(words[1]) if len(words) > 1 else 0
    except (ConnectionError, TimeoutError):
        return 0
    finally:
        writer.transport.abort()


async def throw_all(
    address: str, routes: Iterable[tuple[str, str]], seed: int, count: int, heads: Sequence[str] = (), at_once: int = 8
) -> dict[tuple[str, str], dict[int, int]]:
    """So many at each route; how often each status came."""
    found: dict[tuple[str, str], dict[int, int]] = {}
    for method, path in routes:
        chance = random.Random(f"{seed} {method} {path}")
        counts = found.setdefault((method, path), {})
        for start in range(0, count, at_once):
            some = [case(chance, method, path, address, heads) for _ in range(min(at_once, count - start))]
            for status in await asyncio.gather(*(throw(address, one) for one in some)):
                counts[status] = counts.get(status, 0) + 1
    return found
