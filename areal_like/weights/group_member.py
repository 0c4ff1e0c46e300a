"""How a member of a group and the place where it meets prove to each other that they know the group's secret.

Anybody on the machine can connect there. A group's name is in two parts: its title, which is said aloud, and a secret,
which the controller tells to those who are in it. The secret never travels here: it is the key of an HMAC over fresh
nonces of both sides.
"""

import hashlib
import hmac
import json
import secrets
import socket
import threading
from base64 import b64decode, b64encode
from typing import Any

HOST, MEMBER, PEER = "host", "member", "peer"
"""What a proof is for; none can be used for another."""
MAX_LINE_BYTES = 1 << 16
LEAVE_MESSAGE = {"do": "leave"}


def make_proof(key: str, purpose: str, *words: str) -> str:
    return hmac.digest(key.encode(), json.dumps([purpose, *words]).encode(), hashlib.sha256).hex()


def is_proof(shown: object, key: str, purpose: str, *words: str) -> bool:
    return isinstance(shown, str) and hmac.compare_digest(shown.encode(), make_proof(key, purpose, *words).encode())


def new_nonce() -> str:
    return secrets.token_hex(32)


def json_line(said: dict[str, Any]) -> bytes:
    return json.dumps(said).encode() + b"\n"


def as_text(value: bytes) -> str:
    return b64encode(value).decode()


def as_bytes(text: str) -> bytes:
    return b64decode(text, validate=True)


class Impostor(OSError):
    """Who listens there does not know the secret."""


class GroupMember:
    """A connection to where groups meet: what is known there is asked and changed over it. It is closed when this
    process is gone, however that ends, and so it is known there at once."""

    def __init__(self, host: str, port: int, group: str, title: str, who: str, timeout_s: float) -> None:
        """`group` is the secret. Comes back when the trainer is in the group, too. Raises OSError."""
        self._turn = threading.Lock()
        self._connection = socket.create_connection((host, port), timeout=timeout_s)
        self._reads = self._connection.makefile("rb")
        try:
            mine = new_nonce()
            self._say({"title": title, "nonce": mine})
            shown = self._hear()
            theirs = str(shown.get("nonce"))
            if not is_proof(shown.get("proof"), group, HOST, mine, theirs):
                raise Impostor(f"who listens at {host}:{port} does not know the secret of this group")
            self._say({"who": who, "proof": make_proof(group, MEMBER, mine, theirs, who)})
            self._hear()
        except BaseException:
            self._close()
            raise

    def ask(self, **said: Any) -> Any:
        with self._turn:
            self._say(said)
            return self._hear()["is"]

    def leave(self) -> None:
        """In order: nobody is missed."""
        with self._turn:
            try:
                self._say(LEAVE_MESSAGE)
            except OSError:
                return  # there is nobody any more to be told
            finally:
                self._close()

    def _close(self) -> None:
        self._reads.close()
        self._connection.close()

    def _say(self, said: dict[str, Any]) -> None:
        self._connection.sendall(json_line(said))

    def _hear(self) -> dict[str, Any]:
        heard = self._reads.readline(MAX_LINE_BYTES)
        if not heard.endswith(b"\n"):
            raise ConnectionError("the connection to where the group meets was closed")
        said: dict[str, Any] = json.loads(heard)
        if "refused" in said:
            raise ConnectionError(str(said["refused"]))
        return said
