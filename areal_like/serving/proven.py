"""A server that has to prove itself on every new connection, before anything is sent over it.

What holds a port proves itself right after the connection was made. A port changes hands only when its holder is gone,
and with it all its connections: so the connection is the prover's.
"""

import asyncio
from typing import Any
from weakref import WeakSet

import aiohttp
from aiohttp.connector import Connection

from areal_like.process.identity import RUN_HEADER
from areal_like.process.proof import NONCE_HEADER, PATH, PROOF_HEADER, is_proof, new_nonce

LIMIT_S = 5.0


class Unproven(Exception):
    """Somebody else answers there, in words."""


class Greeting:
    """What a server shows to who knows nothing of it: its seal and its proof, where it has them."""

    def __init__(self, nonce: str, headers: Any) -> None:
        self.nonce = nonce
        self.seal: str = headers.get(RUN_HEADER, "")
        self.proof: str = headers.get(PROOF_HEADER, "")

    @property
    def is_ours(self) -> bool:
        """Whether it claims to be a server of ours; any can."""
        return bool(self.seal or self.proof)


async def greet(address: str) -> Greeting:
    """Sends a nonce and nothing else, over a connection of its own. Raises OSError or TimeoutError where nobody
    answers, Unproven for what speaks no HTTP."""
    nonce = new_nonce()
    limit = aiohttp.ClientTimeout(total=LIMIT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as session,
            session.get(f"http://{address}{PATH}", headers={NONCE_HEADER: nonce}, allow_redirects=False) as answer,
        ):
            return Greeting(nonce, answer.headers)
    except aiohttp.ClientConnectionError as fault:
        raise ConnectionError(str(fault) or type(fault).__name__) from fault
    except aiohttp.ClientError as fault:
        raise Unproven(f"what answers at {address} speaks no HTTP: {fault}") from fault


class Proofs:
    """Those of one server. `seal` is which server of which run it must be, "" where the secret alone says that."""

    def __init__(self, address: str, secret: str, seal: str = "") -> None:
        self.address, self._secret, self._seal = address, secret, seal
        self._port = int(address.rpartition(":")[2])
        self._begun = self._proven = 0
        self._one = asyncio.Lock()

    def check(self, greeting: Greeting) -> None:
        """Raises Unproven."""
        if not greeting.is_ours:
            raise Unproven(f"what answers at {self.address} is not the server that was started here")
        if greeting.seal != self._seal:
            raise Unproven(f"the server of another process answers at {self.address}: {greeting.seal!r}")
        if not is_proof(greeting.proof, self._secret, greeting.nonce, self._port, self._seal):
            raise Unproven(f"what answers at {self.address} does not prove that it knows the secret of its server")

    async def prove(self) -> None:
        """Raises OSError, TimeoutError or Unproven. Who comes while a proof is under way waits for the next one, which
        is one for all of them."""
        before = self._begun
        async with self._one:
            if self._proven > before:
                return
            self._begun += 1
            number = self._begun
            self.check(await greet(self.address))
            self._proven = number


class ProvenConnector(aiohttp.TCPConnector):
    """Connections of a session to one server; `proofs` None is a server that cannot be asked for any."""

    def __init__(self, proofs: Proofs | None, **more: Any) -> None:
        super().__init__(limit=0, **more)
        self._proofs = proofs
        self._are_proven: WeakSet[Any] = WeakSet()

    async def connect(self, *request: Any, **more: Any) -> Connection:
        """A new one, or one that was kept: that was proved when it was new."""
        connection = await super().connect(*request, **more)
        if self._proofs is None or connection.protocol in self._are_proven:
            return connection
        try:
            await self._proofs.prove()
        except (Unproven, OSError, TimeoutError) as fault:
            connection.close()
            raise aiohttp.ClientConnectionError(f"it does not prove itself: {fault}") from fault
        except BaseException:
            connection.close()
            raise
        self._are_proven.add(connection.protocol)
        return connection
