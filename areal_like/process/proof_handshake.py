"""The first words on a connection: a nonce, and what the answer shows of the server. Reads and writes nothing itself,
so that callers with an event loop and those without one ask in the same way."""

from areal_like.process.identity import RUN_HEADER
from areal_like.process.server_proof import NONCE_HEADER, PROOF_HEADER, PROOF_PATH, endpoint_of, is_proof, new_nonce

MAX_HEAD_BYTES = 1 << 14
"""Of the head of an answer."""
HEAD_END = b"\r\n\r\n"


class ProofFailed(Exception):
    """Somebody else answers there, in words."""


class ProofResponse:
    """What a server shows to who knows nothing of it: its seal and its proof, where it has them. `place` is where it
    was asked."""

    def __init__(self, nonce: str, place: str, headers: dict[str, str], is_whole: bool) -> None:
        self.nonce, self.place = nonce, place
        self.seal: str = headers.get(RUN_HEADER.lower(), "")
        self.proof: str = headers.get(PROOF_HEADER.lower(), "")
        self.is_whole = is_whole
        """Nothing follows it, so that the connection can go on with the next request."""

    @property
    def is_ours(self) -> bool:
        """Whether it claims to be a server of ours; any can."""
        return bool(self.seal or self.proof)


class ProofRequest:
    """To be asked on one connection. `end` is the other end of it, as the socket says it."""

    def __init__(self, end: object) -> None:
        """Raises ConnectionError where the connection is gone already."""
        place = endpoint_of(end)
        if place is None:
            raise ConnectionResetError("the connection was closed at once")
        self._nonce, self._place = new_nonce(), place
        self.content = f"GET {PROOF_PATH} HTTP/1.1\r\nHost: {place}\r\n{NONCE_HEADER}: {self._nonce}\r\n\r\n".encode()
        self._heard = b""

    def feed(self, part: bytes) -> ProofResponse | None:
        """None as long as the answer is not whole. Raises Unproven for what is no HTTP, ConnectionError for its end,
        which is no bytes."""
        if not part:
            raise ConnectionResetError("it closed the connection when it was asked for a proof")
        self._heard += part
        head, end, rest = self._heard.partition(HEAD_END)
        if len(head) > MAX_HEAD_BYTES or not b"HTTP/1.".startswith(head[:7]):
            raise ProofFailed(f"what answers at {self._place} speaks no HTTP")
        if not end:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        named = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in named}
        is_whole = first.split()[1:2] == ["200"] and headers.get("content-length") == "0" and not rest
        return ProofResponse(self._nonce, self._place, headers, is_whole and headers.get("connection") != "close")


class ProofVerifier:
    """Those that servers must give who know `secret`. `seal` is which server of which run it must be, "" where the
    secret alone says that."""

    def __init__(self, secret: str, seal: str = "") -> None:
        self._secret, self._seal = secret, seal

    def check(self, greeting: ProofResponse) -> None:
        """Raises Unproven."""
        place = greeting.place
        if not greeting.is_ours:
            raise ProofFailed(f"what answers at {place} is not the server that was started there")
        if greeting.seal != self._seal:
            raise ProofFailed(f"the server of another process answers at {place}: {greeting.seal!r}")
        if not is_proof(greeting.proof, self._secret, greeting.nonce, place, self._seal):
            raise ProofFailed(f"what answers at {place} does not prove that it knows the secret of its server")

    def check_connection(self, greeting: ProofResponse) -> None:
        """The same for a connection over which more is to be sent. Raises Unproven."""
        self.check(greeting)
        if not greeting.is_whole:
            raise ProofFailed(f"the server at {greeting.place} does not keep the connection on which it proved itself")
