"""Raw HTTP requests: clients would normalize dots, slashes and escapes of a path."""

import asyncio

LIMIT_S = 60.0

DISGUISES = (
    *("/v1/../{}", "/v1/models/../../{}", "/v1/./../{}", "/v1/..//{}", "/health/../{}", "/metrics/../{}"),
    *("/v1/%2e%2e/{}", "/v1/%2E%2E/{}", "/v1/.%2e/{}", "/v1%2f..%2f{}", "/v1/..%2f{}", "/v1/%252e%252e/{}"),
    *("//{}", "/v1//../{}", "/{}/", "/./{}", "/v1/models/..;/{}", "/v1/models?/../../{}", "/v1/models%00/../{}"),
    *("http://somewhere/v1/../{}", "/v1\\..\\{}", "/v1/completions/../../{}", "/tokenize/%2e%2e/{}"),
)
"""Variants of a path of commands that look like an open path."""
METHODS = ("POST", "GET", "HEAD", "OPTIONS")


async def status_of(address: str, method: str, target: str, body: bytes = b"{}") -> int:
    """Status of an answer without a token; 400 if the connection is only closed."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        head = f"{method} {target} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        line = await asyncio.wait_for(reader.readline(), LIMIT_S)
        return int(line.split()[1]) if line else 400
    finally:
        writer.close()
