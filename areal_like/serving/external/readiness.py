"""Whether an engine can be worked with: it has generated a token, it is the one that was started, with its model."""

import asyncio

from areal_like.process.errors import Failure
from areal_like.process.proof_connector import request_proof
from areal_like.process.proof_handshake import ProofFailed, ProofVerifier
from areal_like.process.wait import NamedWait
from areal_like.serving.external.base import EngineGone, EngineInfo, IncompatibleEngine, InferenceEngine, NotReady

PAUSE_S = 0.2
ATTEMPT_TIMEOUT_S = 60.0
"""A first generation may compile for as long; then it is asked for again."""


class PortTaken(Exception):
    """Somebody else answers where the engine should."""


async def until_ready(
    engine: InferenceEngine, address: str, proofs: ProofVerifier | None, waiting: NamedWait
) -> EngineInfo:
    """Asks until a token was generated; raises PortTaken, Failure, or TimedOut past the limit of `waiting`. With
    `proofs` nothing is sent there before it has proved itself."""
    what = waiting.what
    while True:
        left_s = max(0.1, waiting.limit_s - waiting.waited_s)
        try:
            if proofs is not None:
                await _check(proofs, address)
            return await asyncio.wait_for(engine.ready(), min(ATTEMPT_TIMEOUT_S, left_s))
        except TimeoutError:
            reason = "a generation did not come to its end"
        except (NotReady, EngineGone) as not_yet:
            reason = str(not_yet)
        except IncompatibleEngine as unfit:
            raise Failure(f"the server at {address}: {unfit}") from unfit
        waiting.what = f"{what} ({reason})" if reason else what
        waiting.check()
        await asyncio.sleep(PAUSE_S)


async def _check(proofs: ProofVerifier, address: str) -> None:
    try:
        proofs.check(await request_proof(address))
    except (OSError, TimeoutError) as fault:
        raise NotReady("nothing answers there yet") from fault
    except ProofFailed as unproven:
        raise PortTaken(str(unproven)) from unproven
