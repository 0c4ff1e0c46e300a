"""What all engines that are other programs have in common: HTTP calls, the end of the program, its public routes."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from areal_like.config.dotted_path import value_of
from areal_like.config.sections.engines.base import EngineKeys
from areal_like.models.model_shape import DTYPE_ALIASES
from areal_like.process.errors import Failure
from areal_like.process.proof_handshake import ProofVerifier
from areal_like.serving.engines.base import ClientAccess, EngineGone, EngineInfo, GenerateRequest, InferenceEngine
from areal_like.serving.engines.external.http_calls import EngineClient, RefusedCall
from areal_like.serving.public_proxy import PublicProxy
from areal_like.weights.probe import ROUNDING

if TYPE_CHECKING:
    from aiohttp import web

COARSEST = "bfloat16"


class NotReady(Exception):
    """The engine does not answer yet; try again."""


class IncompatibleEngine(ValueError):
    """The engine has another model, belongs to another run, or has an unsupported version."""


class ExternalEngine(InferenceEngine):
    """An engine at an address. `ended` is done when its program has ended. With `proofs` it must prove its identity on
    each connection."""

    start_hint = ""
    """How to start the program so that it serves a run; follows what it refused."""

    def __init__(self, keys: EngineKeys, config: Any, address: str, secret: str, proofs: ProofVerifier | None) -> None:
        self.calls = EngineClient(keys.title, address, secret, proofs)
        self.dtype = engine_dtype(value_of(config, keys.dtype_key))
        self.ended: asyncio.Task[Failure] | None = None
        self._access = address, secret, proofs
        self._proxy: PublicProxy | None = None

    async def ready(self) -> EngineInfo:
        """Sets `info`, and generates one token; raises NotReady or IncompatibleEngine."""
        try:
            await self.get_ready()
        except RefusedCall as refusal:
            if refusal.status == 401:
                raise IncompatibleEngine("the server is not of this run: it requires another token") from refusal
            raise IncompatibleEngine(f"{refusal}; {self.start_hint}".removesuffix("; ")) from refusal
        except EngineGone as fault:
            raise NotReady(str(fault)) from fault
        return self.info

    async def get_ready(self) -> None:
        """The steps of `ready`; what the engine refuses becomes an IncompatibleEngine there."""
        raise NotImplementedError

    async def generate_token(self) -> None:
        prompt = [min(5, self.info.vocab_size - 1)]
        await self.generate(GenerateRequest("ready", prompt, 1, 0, {"max_new_tokens": 1}))

    async def read_info(self) -> EngineInfo:
        raise NotImplementedError

    async def loaded_adapters(self) -> list[str]:
        """By the route of OpenAI, where an adapter is a model with a parent."""
        cards = (await self.calls.get("/v1/models"))["data"]
        return [card["id"] for card in cards if card.get("parent") is not None]

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
