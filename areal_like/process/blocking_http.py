"""Blocking HTTP client, for processes without an event loop. Calls are repeated once on a lost connection, so every
route that is called must be idempotent."""

import http.client
import time
from typing import Any

import orjson

from areal_like.process.errors import HttpError, Unreachable
from areal_like.process.frames import Frame, unpack
from areal_like.process.identity import Identity, call_headers
from areal_like.process.proof_handshake import ProofFailed, ProofRequest, ProofVerifier

PROOF_TIMEOUT_S = 30.0
"""A server may be busy. A shorter timeout of the call counts instead."""


class _ProvenConnection(http.client.HTTPConnection):
    """Requires a proof from the server on every new connection, before anything else is sent."""

    def __init__(self, address: str, timeout_s: float, proofs: ProofVerifier) -> None:
        super().__init__(address, timeout=timeout_s)
        self._proofs = proofs

    def connect(self) -> None:
        super().connect()
        try:
            self._prove()
        except BaseException:
            self.close()
            raise

    def _prove(self) -> None:
        limit_s = min(PROOF_TIMEOUT_S, self.timeout or PROOF_TIMEOUT_S)
        ends = time.monotonic() + limit_s
        question = ProofRequest(self.sock.getpeername())
        self.sock.sendall(question.content)
        proof_response = None
        while proof_response is None:
            left_s = ends - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"no proof within {limit_s:g} s")
            self.sock.settimeout(left_s)
            proof_response = question.feed(self.sock.recv(1 << 14))
        self.sock.settimeout(self.timeout)
        self._proofs.check_connection(proof_response)


class BlockingHttpClient:
    """One kept-alive connection per address. A server proves that it knows the token before the token is sent."""

    def __init__(self, me: Identity, secret: str) -> None:
        self._headers, self._proofs = call_headers(me, secret), ProofVerifier(secret)
        self._connections: dict[str, http.client.HTTPConnection] = {}

    def json(self, method: str, address: str, path: str, body: Any = None, timeout_s: float = 60.0) -> Any:
        return orjson.loads(self._call(method, address, path, body, timeout_s))

    def frame(self, method: str, address: str, path: str, body: Any = None, timeout_s: float = 60.0) -> Frame:
        return unpack(self._call(method, address, path, body, timeout_s))

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _call(self, method: str, address: str, path: str, body: Any, timeout_s: float) -> bytes:
        """`body` is sent as it is where it is bytes, else as JSON."""
        from areal_like.process.http import error_message

        data = body if isinstance(body, bytes) or body is None else orjson.dumps(body)
        try:
            status, content = self._send(method, address, path, data, timeout_s)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self._drop(address)  # the server may have closed a kept-alive connection
            try:
                status, content = self._send(method, address, path, data, timeout_s)
            except (OSError, http.client.HTTPException, ProofFailed) as fault:
                raise self._lost(address, path, fault) from fault
        except (OSError, http.client.HTTPException, ProofFailed) as fault:
            raise self._lost(address, path, fault) from fault
        if status >= 400:
            raise HttpError(status, error_message(content))
        return content

    def _send(self, method: str, address: str, path: str, data: bytes | None, timeout_s: float) -> tuple[int, bytes]:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = _ProvenConnection(address, timeout_s, self._proofs)
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        connection.request(method, path, body=data, headers=self._headers)
        response = connection.getresponse()
        return response.status, response.read()

    def _lost(self, address: str, path: str, fault: Exception) -> Unreachable:
        self._drop(address)
        return Unreachable(address, f"{path}: {fault or type(fault).__name__}")

    def _drop(self, address: str) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()
