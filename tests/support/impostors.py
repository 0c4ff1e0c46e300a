"""Listeners on a port of another process; they record what they receive."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from areal_like.process.server_proof import make_proof, new_nonce

SECRET, SEAL = "the token of a run", "run1 server/0 1.1"


class Listener:
    """A foreign listener on a port: records every byte, and answers with `reply`."""

    def __init__(self, reply: Callable[[bytes], Awaitable[bytes]]) -> None:
        self.received_by_connection: list[bytes] = []
        self.on_connection: Callable[[], Awaitable[Any]] | None = None
        self._reply = reply
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[Any]] = set()

    @property
    def heard(self) -> bytes:
        return b"".join(self.received_by_connection)

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> "Listener":
        self._server = await asyncio.start_server(self._serve, host, port)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        number = len(self.received_by_connection)
        self.received_by_connection.append(b"")
        if self.on_connection is not None:
            await self.on_connection()
        try:
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                self.received_by_connection[number] += request
                writer.write(await self._reply(request))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def release_port(self) -> None:
        """Existing connections stay open."""
        assert self._server is not None
        self._server.close()

    async def close(self) -> None:
        """After all clients have closed their connections."""
        self.release_port()
        while self._open:
            await asyncio.wait(self._open)


def http(**headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 200 OK\r\n{lines}Content-Length: 0\r\n\r\n".encode()


async def foreign(_: bytes) -> bytes:
    return http()


async def replays(_: bytes) -> bytes:
    """A proof that was valid for another nonce."""
    return http(X_Areal_Run=SEAL, X_Areal_Proof=make_proof(SECRET, new_nonce(), "127.0.0.1:1", SEAL) or "")


def passing_on(port: int) -> Callable[[bytes], Awaitable[bytes]]:
    """Forwards each request to the right server."""

    async def reply(request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return answer

    return reply
