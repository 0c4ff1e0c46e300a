"""Checks of a request before its route: whether a web page may have sent it, and the size and duration of its body."""

import asyncio
import ipaddress
from typing import NamedTuple

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

HOST: web.AppKey[str] = web.AppKey("host", str)
"""The configured address to listen on."""

JSON = "application/json"
CROSS_SITE = ("cross-site", "same-site")
MIB = 1 << 20

Refusal = tuple[int, str]
"""Status and message."""


class BodyLimits(NamedTuple):
    """Maximum size in bytes and time to arrive of bodies: for calls of the run, and for other clients."""

    of_run: int = 1024 * MIB
    of_others: int = MIB
    of_run_s: float = 300.0
    of_others_s: float = 30.0


def refuse_page(request: web.Request) -> Refusal | None:
    """For callers without the token: refuses web pages, recognized by their site (Origin) or by a host name that was
    pointed here (Host, DNS rebinding)."""
    hosts = request.headers.getall("Host", [])
    if len(hosts) != 1 or not _is_own(request, hosts[0]):
        shown = hosts[0][:80] if len(hosts) == 1 else f"given {len(hosts)} times"
        return 403, f"Host: {shown!r} is not an address of this server; call it by its address or as localhost"
    for origin in request.headers.getall("Origin", []):
        if origin != f"http://{hosts[0]}":
            return 403, "Origin: calls by pages of other sites are refused"
    if request.method not in ("GET", "HEAD") and request.headers.get("Sec-Fetch-Site") in CROSS_SITE:
        return 403, "Sec-Fetch-Site: calls by pages of other sites are refused"
    return None


def _is_own(request: web.Request, host: str) -> bool:
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    name = name.lower().rstrip(".")
    if name in ("localhost", request.app[HOST].lower() if HOST in request.app else "localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    local = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return address.is_loopback or (local is not None and str(address) == local[0].partition("%")[0])


async def read_body(request: web.Request, limits: BodyLimits, is_of_run: bool) -> web.Request:
    """Reads the body; raises HTTPException if it exceeds a limit or is broken."""
    if not request.body_exists:
        return request
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise web.HTTPUnsupportedMediaType(text="Content-Encoding: send the body as it is, not compressed")
    if not is_of_run and request.content_type != JSON:
        raise web.HTTPUnsupportedMediaType(text=f"Content-Type: send {JSON}")
    most = limits.of_run if is_of_run else limits.of_others
    seconds = limits.of_run_s if is_of_run else limits.of_others_s
    if (request.content_length or 0) > most:
        raise web.HTTPRequestEntityTooLarge(most, request.content_length or 0, text=_too_large(most))
    bounded = request.clone(client_max_size=most)
    try:
        async with asyncio.timeout(seconds):
            await bounded.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body did not arrive within {seconds:g} s") from None
    except web.HTTPRequestEntityTooLarge as large:
        raise web.HTTPRequestEntityTooLarge(most, most + 1, text=_too_large(most)) from large
    except (web.RequestPayloadError, ConnectionError, aiohttp.ClientError, HttpProcessingError) as broken:
        raise web.HTTPBadRequest(text=f"the body is broken: {broken}") from broken
    return bounded


def _too_large(most: int) -> str:
    return f"the body is larger than {most} bytes, the most that this server reads"
