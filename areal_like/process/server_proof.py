"""Proof that a server knows a secret: an HMAC over a nonce of the client.

The proof covers the address and port at which the connection arrived, so that a program that listens elsewhere cannot
relay the exchange. Runs inside external engines too: standard library only.
"""

import hashlib
import hmac
import ipaddress
import re
import secrets
from typing import Any

PROOF_PATH = "/areal-like/proof"
"""Answered without a token; the request carries `NONCE_HEADER`."""
NONCE_HEADER, PROOF_HEADER = "X-Areal-Nonce", "X-Areal-Proof"
NONCE = re.compile(r"[0-9a-f]{64}")
PURPOSE = b"areal-like: a server proves which it is"


def new_nonce() -> str:
    return secrets.token_hex(32)


def endpoint_of(end: Any) -> str | None:
    """The server's end of a connection, from `getsockname` at the server and `getpeername` at the client. Both give the
    same text, also for a server that listens on IPv4 and IPv6. None if it is not TCP."""
    if not isinstance(end, tuple | list) or len(end) < 2:
        return None
    try:
        host = ipaddress.ip_address(str(end[0]).partition("%")[0])
    except ValueError:
        return None
    plain = getattr(host, "ipv4_mapped", None) or host
    return f"[{plain}]:{end[1]}" if plain.version == 6 else f"{plain}:{end[1]}"


def make_proof(secret: str, nonce: str, endpoint: str, who: str) -> str | None:
    """`who`: the server's start id, or nothing. None if the nonce is malformed."""
    if NONCE.fullmatch(nonce) is None:
        return None
    key = hmac.digest(secret.encode(), PURPOSE, hashlib.sha256)
    return hmac.digest(key, f"{nonce} {endpoint} {who}".encode(), hashlib.sha256).hex()


def is_proof(shown: str, secret: str, nonce: str, endpoint: str, who: str) -> bool:
    return hmac.compare_digest(shown.encode(), (make_proof(secret, nonce, endpoint, who) or "").encode())
