"""Reads the body of a response of a service that is not ours, up to a limit."""

import aiohttp

MAX_BYTES = 1 << 26
"""No chat completion is longer; a service that never stops would fill the memory."""


async def read_body(response: aiohttp.ClientResponse) -> bytes:
    """Raises ClientPayloadError for more than MAX_BYTES."""
    body = bytearray()
    async for block in response.content.iter_any():
        body += block
        if len(body) > MAX_BYTES:
            response.close()
            raise aiohttp.ClientPayloadError(f"a response of more than {MAX_BYTES >> 20} MB")
    return bytes(body)
