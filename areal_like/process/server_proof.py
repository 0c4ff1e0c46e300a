"""How a server proves that it knows a secret before it is sent anything: by an HMAC over a nonce of whoever asks.

The proof covers the address and port at which the connection arrived: who listens elsewhere, be it on another address
of the machine, cannot pass a question on to the right server and its answer back. Runs in the processes of engines too,
on the standard library alone.
"""

import hashlib
import hmac
import ipaddress
import re
import secrets
from typing import Any

PROOF_PATH = "/areal-like/proof"
"""Answered without a token, by `NONCE_HEADER`."""
NONCE_HEADER, PROOF_HEADER = "X-Areal-Nonce", "X-Areal-Proof"
NONCE = re.compile(r"[0-9a-f]{64}")
PURPOSE = b"areal-like: a server proves which it is"


def new_nonce() -> str:
    return secrets.token_hex(32)


def endpoint_of(end: Any) -> str | None:
    """The server's end of a connection, from what a socket says of it: at the server `getsockname`, at the client
    `getpeername`. Both see the same, also where one listens for IPv4 and IPv6 at once. None for what is not TCP."""
    if not isinstance(end, tuple | list) or len(end) < 2:
        return None
    try:
        host = ipaddress.ip_address(str(end[0]).partition("%")[0])
    except ValueError:
        return None
    plain = getattr(host, "ipv4_mapped", None) or host
    return f"[{plain}]:{end[1]}" if plain.version == 6 else f"{plain}:{end[1]}"


def make_proof(secret: str, nonce: str, place: str, who: str) -> str | None:
    """`who` the server is: its seal, or nothing. None for what is no nonce."""
    if NONCE.fullmatch(nonce) is None:
        return None
    key = hmac.digest(secret.encode(), PURPOSE, hashlib.sha256)
    return hmac.digest(key, f"{nonce} {place} {who}".encode(), hashlib.sha256).hex()


def is_proof(shown: str, secret: str, nonce: str, place: str, who: str) -> bool:
    return hmac.compare_digest(shown.encode(), (make_proof(secret, nonce, place, who) or "").encode())
