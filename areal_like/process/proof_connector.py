"""aiohttp connector that requires a proof from the server on every new connection, before anything else is sent."""

import asyncio
from typing import Any
from weakref import WeakSet

import aiohttp
from aiohttp.connector import Connection

from areal_like.process.proof_handshake import ProofFailed, ProofRequest, ProofResponse, ProofVerifier

PROBE_TIMEOUT_S = 5.0
PROOF_TIMEOUT_S = 30.0
"""A server may be busy. A shorter timeout of the call counts instead."""


class _ResponseReader(asyncio.Protocol):
    """Protocol of the connection, in place of `owner`, until the answer is complete."""

    def __init__(self, request: ProofRequest, transport: asyncio.Transport, owner: asyncio.BaseProtocol) -> None:
        self._request, self._transport, self._owner = request, transport, owner
        self.response: asyncio.Future[ProofResponse] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if self.response.done():
            self._transport.abort()  # nothing more was requested
            return
        try:
            response = self._request.feed(data)
        except ProofFailed as unproven:
            self.response.set_exception(unproven)
        else:
            if response is not None:
                self.response.set_result(response)

    def connection_lost(self, fault: Exception | None) -> None:
        if not self.response.done():
            self.response.set_exception(fault or ConnectionResetError("it closed the connection without a proof"))
        self._owner.connection_lost(fault)


async def _exchange(transport: asyncio.Transport, owner: asyncio.BaseProtocol, limit_s: float) -> ProofResponse:
    """Sends the nonce and nothing else. Raises OSError, TimeoutError or ProofFailed."""
    request = ProofRequest(transport.get_extra_info("peername"))
    answer = _ResponseReader(request, transport, owner)
    transport.set_protocol(answer)
    try:
        transport.write(request.content)
        async with asyncio.timeout(limit_s):
            return await answer.response
    finally:
        transport.set_protocol(owner)


async def request_proof(address: str) -> ProofResponse:
    """Over a separate connection. Raises OSError or TimeoutError without an answer, ProofFailed if it is not HTTP."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PROBE_TIMEOUT_S):
        transport, owner = await loop.create_connection(asyncio.Protocol, host.strip("[]"), int(port))
    try:
        return await _exchange(transport, owner, PROBE_TIMEOUT_S)
    finally:
        transport.abort()


class ProofConnector(aiohttp.TCPConnector):
    """Connections to servers whose proofs `proofs` accepts; None: the server cannot give proofs."""

    def __init__(self, proofs: ProofVerifier | None, **more: Any) -> None:
        super().__init__(limit=0, **more)
        self._proofs = proofs
        self._are_proven: WeakSet[Any] = WeakSet()

    async def connect(self, *request: Any, **more: Any) -> Connection:
        """A new connection, or a kept-alive one, which was proved when it was new."""
        connection = await super().connect(*request, **more)
        if self._proofs is None or connection.protocol in self._are_proven:
            return connection
        try:
            await self._prove(connection, self._proofs)
        except TimeoutError as fault:
            connection.close()
            why = f"it does not prove itself: no answer within {PROOF_TIMEOUT_S:g} s"
            raise aiohttp.ClientConnectionError(why) from fault
        except (ProofFailed, OSError) as fault:
            connection.close()
            raise aiohttp.ClientConnectionError(f"it does not prove itself: {fault}") from fault
        except BaseException:
            connection.close()
            raise
        self._are_proven.add(connection.protocol)
        return connection

    async def _prove(self, connection: Connection, proofs: ProofVerifier) -> None:
        """Raises OSError, TimeoutError or ProofFailed."""
        transport, owner = connection.transport, connection.protocol
        if transport is None or owner is None:
            raise ConnectionResetError("the connection was closed at once")
        proofs.check_connection(await _exchange(transport, owner, PROOF_TIMEOUT_S))
