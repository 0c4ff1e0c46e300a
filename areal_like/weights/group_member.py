"""Connection of a group's member to the group server, with mutual authentication.

Any program on the machine can connect. A group's name consists of a title, which is sent, and a secret, which the
controller gives to the members. The secret is never sent here: it is the key of an HMAC over fresh nonces of both
sides.
"""

import hashlib
import hmac
import json
import socket
import threading
from base64 import b64decode, b64encode
from typing import Any

from areal_like.process.server_proof import new_nonce

HOST, MEMBER, PEER = "host", "member", "peer"
"""Purposes of proofs; a proof for one is invalid for another."""
MAX_LINE_BYTES = 1 << 16
LEAVE_MESSAGE = {"do": "leave"}


def make_member_proof(key: str, purpose: str, *words: str) -> str:
    return hmac.digest(key.encode(), json.dumps([purpose, *words]).encode(), hashlib.sha256).hex()


def is_member_proof(shown: object, key: str, purpose: str, *words: str) -> bool:
    return isinstance(shown, str) and hmac.compare_digest(
        shown.encode(), make_member_proof(key, purpose, *words).encode()
    )


def json_line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def as_text(value: bytes) -> str:
    return b64encode(value).decode()


def as_bytes(text: str) -> bytes:
    return b64decode(text, validate=True)


class Impostor(OSError):
    """The program that listens there does not know the secret."""


class GroupMember:
    """A connection to the group server, for requests to the group's store. The kernel closes it when this process ends,
    so that the server notices at once."""

    def __init__(self, host: str, port: int, group: str, title: str, who: str, timeout_s: float) -> None:
        """`group`: name with the secret. Returns once the trainer has opened the group. Raises OSError."""
        self._lock = threading.Lock()
        self._connection = socket.create_connection((host, port), timeout=timeout_s)
        self._reads = self._connection.makefile("rb")
        try:
            own_nonce = new_nonce()
            self._send({"title": title, "nonce": own_nonce})
            shown = self._receive()
            nonce = str(shown.get("nonce"))
            if not is_member_proof(shown.get("proof"), group, HOST, own_nonce, nonce):
                raise Impostor(f"the program at {host}:{port} does not know the secret of this group")
            self._send({"who": who, "proof": make_member_proof(group, MEMBER, own_nonce, nonce, who)})
            self._receive()
        except BaseException:
            self._close()
            raise

    def ask(self, **message: Any) -> Any:
        with self._lock:
            self._send(message)
            return self._receive()["is"]

    def leave(self) -> None:
        """Leaves in order: not reported as gone."""
        with self._lock:
            try:
                self._send(LEAVE_MESSAGE)
            except OSError:
                return  # the server has ended
            finally:
                self._close()

    def _close(self) -> None:
        self._reads.close()
        self._connection.close()

    def _send(self, message: dict[str, Any]) -> None:
        self._connection.sendall(json_line(message))

    def _receive(self) -> dict[str, Any]:
        line = self._reads.readline(MAX_LINE_BYTES)
        if not line.endswith(b"\n"):
            raise ConnectionError("the group server closed the connection")
        message: dict[str, Any] = json.loads(line)
        if "refused" in message:
            raise ConnectionError(str(message["refused"]))
        return message
