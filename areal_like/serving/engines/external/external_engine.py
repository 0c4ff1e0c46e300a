"""What all engines that are other programs have in common: HTTP calls, the end of the program, its public routes."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from areal_like.config.dotted_path import value_of
from areal_like.config.sections.engines.base import EngineKeys
from areal_like.process.errors import Failure
from areal_like.process.proof_handshake import ProofVerifier
from areal_like.serving.engines.base import ClientAccess, EngineInfo, InferenceEngine
from areal_like.serving.engines.external.http_calls import EngineClient
from areal_like.serving.public_proxy import PublicProxy
from areal_like.weights.probe import ROUNDING

if TYPE_CHECKING:
    from aiohttp import web

DTYPE_ALIASES = {"half": "float16", "float": "float32", "fp16": "float16", "fp32": "float32", "bf16": "bfloat16"}
COARSEST = "bfloat16"


class NotReady(Exception):
    """The engine does not answer yet; try again."""


class IncompatibleEngine(ValueError):
    """The engine has another model, belongs to another run, or has an unsupported version."""


class ExternalEngine(InferenceEngine):
    """An engine at an address. `ended` is done when its program has ended. With `proofs` it must prove its identity on
    each connection."""

    def __init__(self, keys: EngineKeys, config: Any, address: str, secret: str, proofs: ProofVerifier | None) -> None:
        self.calls = EngineClient(keys.title, address, secret, proofs)
        self.dtype = engine_dtype(value_of(config, keys.dtype_key))
        self.ended: asyncio.Task[Failure] | None = None
        self._access = address, secret, proofs
        self._proxy: PublicProxy | None = None

    async def ready(self) -> EngineInfo:
        """Sets `info`, and generates one token; raises NotReady or IncompatibleEngine."""
        raise NotImplementedError

    async def read_info(self) -> EngineInfo:
        raise NotImplementedError

    def client_routes(self, access: ClientAccess) -> Sequence["web.RouteDef"]:
        address, secret, proofs = self._access
        self._proxy = PublicProxy(address, secret, proofs, self.info, access)
        return self._proxy.routes()

    async def gone(self) -> Failure:
        assert self.ended is not None, "the engine was not started or attached"
        return await asyncio.shield(self.ended)

    async def close(self) -> None:
        if self._proxy is not None:
            await self._proxy.close()
        await self.calls.close()


def engine_dtype(value: Any) -> str:
    """The precision of an engine; the coarsest if the engine chooses it itself."""
    name = DTYPE_ALIASES.get(str(value), str(value))
    return name if name in ROUNDING else COARSEST
