"""How a server proves that it knows a secret before it is sent anything: by an HMAC over a nonce of whoever asks.

The proof covers the port on which the question arrived: who listens elsewhere cannot pass a question on to the right
server and its answer back. Runs in the processes of engines too, on the standard library alone.
"""

import hashlib
import hmac
import re
import secrets

PATH = "/areal-like/proof"
"""Answered without a token, by `NONCE_HEADER`."""
NONCE_HEADER, PROOF_HEADER = "X-Areal-Nonce", "X-Areal-Proof"
NONCE = re.compile(r"[0-9a-f]{64}")
PURPOSE = b"areal-like: a server proves which it is"


def new_nonce() -> str:
    return secrets.token_hex(32)


def prove(secret: str, nonce: str, port: int, who: str) -> str | None:
    """`who` the server is: its seal, or nothing. None for what is no nonce."""
    if NONCE.fullmatch(nonce) is None:
        return None
    key = hmac.digest(secret.encode(), PURPOSE, hashlib.sha256)
    return hmac.digest(key, f"{nonce} {port} {who}".encode(), hashlib.sha256).hex()


def is_proof(shown: str, secret: str, nonce: str, port: int, who: str) -> bool:
    return hmac.compare_digest(shown.encode(), (prove(secret, nonce, port, who) or "").encode())
