"""Handshake on a new connection: the client sends a nonce, the server's answer proves its identity. Does no I/O itself,
so that the asyncio and the blocking client share it."""

from areal_like.process.identity import RUN_HEADER
from areal_like.process.server_proof import NONCE_HEADER, PROOF_HEADER, PROOF_PATH, endpoint_of, is_proof, new_nonce

MAX_HEAD_BYTES = 1 << 14
"""Limit for the head of an answer."""
HEAD_END = b"\r\n\r\n"


class ProofFailed(Exception):
    """The peer did not prove to be the expected server."""


class ProofResponse:
    """A server's answer: its start id and its proof, if it has them. `endpoint`: address and port that were called."""

    def __init__(self, nonce: str, endpoint: str, headers: dict[str, str], is_whole: bool) -> None:
        self.nonce, self.endpoint = nonce, endpoint
        self.start_id: str = headers.get(RUN_HEADER.lower(), "")
        self.proof: str = headers.get(PROOF_HEADER.lower(), "")
        self.is_whole = is_whole
        """Nothing follows it: the connection can be used for the next request."""

    @property
    def is_ours(self) -> bool:
        """Whether it claims to be a server of this package; any server can."""
        return bool(self.start_id or self.proof)


class ProofRequest:
    """The request on one connection. `end`: the peer address, as the socket gives it."""

    def __init__(self, end: object) -> None:
        """Raises ConnectionError if the connection is closed already."""
        endpoint = endpoint_of(end)
        if endpoint is None:
            raise ConnectionResetError("the connection was closed at once")
        self._nonce, self._endpoint = new_nonce(), endpoint
        self.content = (
            f"GET {PROOF_PATH} HTTP/1.1\r\nHost: {endpoint}\r\n{NONCE_HEADER}: {self._nonce}\r\n\r\n".encode()
        )
        self._received = b""

    def feed(self, part: bytes) -> ProofResponse | None:
        """Takes the next bytes; None until the answer is complete. Raises ProofFailed if it is not HTTP,
        ConnectionError at the end of the stream (no bytes)."""
        if not part:
            raise ConnectionResetError("it closed the connection when asked for a proof")
        self._received += part
        head, end, remainder = self._received.partition(HEAD_END)
        if len(head) > MAX_HEAD_BYTES or not b"HTTP/1.".startswith(head[:7]):
            raise ProofFailed(f"the program at {self._endpoint} does not speak HTTP")
        if not end:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        named = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in named}
        is_whole = first.split()[1:2] == ["200"] and headers.get("content-length") == "0" and not remainder
        return ProofResponse(self._nonce, self._endpoint, headers, is_whole and headers.get("connection") != "close")


class ProofVerifier:
    """Verifies proofs of servers that know `secret`. `start_id`: the expected server of the expected run; "" if the
    secret alone identifies it."""

    def __init__(self, secret: str, start_id: str = "") -> None:
        self._secret, self._start_id = secret, start_id

    def check(self, response: ProofResponse) -> None:
        """Raises ProofFailed."""
        endpoint = response.endpoint
        if not response.is_ours:
            raise ProofFailed(f"the program that answers at {endpoint} is not the server that was started there")
        if response.start_id != self._start_id:
            raise ProofFailed(f"another server answers at {endpoint}: {response.start_id!r}")
        if not is_proof(response.proof, self._secret, response.nonce, endpoint, self._start_id):
            raise ProofFailed(
                f"the program that answers at {endpoint} does not prove that it knows the secret of the server"
            )

    def check_connection(self, response: ProofResponse) -> None:
        """The same for a connection that is used further. Raises ProofFailed."""
        self.check(response)
        if not response.is_whole:
            raise ProofFailed(f"the server at {response.endpoint} closes the connection after its proof")
