"""A server that has to prove itself on every new connection, on that very connection, before anything else is sent over
it."""

import asyncio
from typing import Any
from weakref import WeakSet

import aiohttp
from aiohttp.connector import Connection

from areal_like.process.proof_handshake import ProofFailed, ProofRequest, ProofResponse, ProofVerifier

PROBE_TIMEOUT_S = 5.0
PROOF_TIMEOUT_S = 30.0
"""A server may be busy. A call has its own limit, which may be shorter."""


class _Answer(asyncio.Protocol):
    """Takes the place of the connection's `owner` until the answer is there."""

    def __init__(self, question: ProofRequest, transport: asyncio.Transport, owner: asyncio.BaseProtocol) -> None:
        self._question, self._transport, self._owner = question, transport, owner
        self.greeting: asyncio.Future[ProofResponse] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if self.greeting.done():
            self._transport.abort()  # nobody has asked for more
            return
        try:
            greeting = self._question.feed(data)
        except ProofFailed as unproven:
            self.greeting.set_exception(unproven)
        else:
            if greeting is not None:
                self.greeting.set_result(greeting)

    def connection_lost(self, fault: Exception | None) -> None:
        if not self.greeting.done():
            self.greeting.set_exception(fault or ConnectionResetError("it closed the connection without a proof"))
        self._owner.connection_lost(fault)


async def _ask(transport: asyncio.Transport, owner: asyncio.BaseProtocol, limit_s: float) -> ProofResponse:
    """Sends a nonce and nothing else. Raises OSError, TimeoutError or Unproven."""
    question = ProofRequest(transport.get_extra_info("peername"))
    answer = _Answer(question, transport, owner)
    transport.set_protocol(answer)
    try:
        transport.write(question.content)
        async with asyncio.timeout(limit_s):
            return await answer.greeting
    finally:
        transport.set_protocol(owner)


async def request_proof(address: str) -> ProofResponse:
    """Over a connection of its own. Raises OSError or TimeoutError where nobody answers, Unproven for what speaks no
    HTTP."""
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(PROBE_TIMEOUT_S):
        transport, owner = await loop.create_connection(asyncio.Protocol, host.strip("[]"), int(port))
    try:
        return await _ask(transport, owner, PROBE_TIMEOUT_S)
    finally:
        transport.abort()


class ProofConnector(aiohttp.TCPConnector):
    """Connections of a session to servers that give these proofs; `proofs` None is a server that cannot be asked for
    any."""

    def __init__(self, proofs: ProofVerifier | None, **more: Any) -> None:
        super().__init__(limit=0, **more)
        self._proofs = proofs
        self._are_proven: WeakSet[Any] = WeakSet()

    async def connect(self, *request: Any, **more: Any) -> Connection:
        """A new one, or one that was kept: that was proved when it was new."""
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
        """Raises OSError, TimeoutError or Unproven."""
        transport, owner = connection.transport, connection.protocol
        if transport is None or owner is None:
            raise ConnectionResetError("the connection was closed at once")
        proofs.check_connection(await _ask(transport, owner, PROOF_TIMEOUT_S))
