"""All routes of the embedded engine for clients outside of the run."""

from aiohttp import web

from areal_like.serving.engines.base import ClientAccess
from areal_like.serving.engines.embedded.openai_api.adapter_routes import AdapterRoutes
from areal_like.serving.engines.embedded.openai_api.completions import CompletionsRoute
from areal_like.serving.engines.embedded.openai_api.generate_tokens import GenerateTokensRoute
from areal_like.serving.engines.embedded.openai_api.openai_serving import OpenAIServing
from areal_like.serving.engines.embedded.openai_api.server_info import ServerInfoRoutes
from areal_like.serving.engines.embedded.openai_api.tokenize import TokenizeRoutes
from areal_like.serving.engines.embedded.weights.named_adapters import NamedAdapters


def openai_routes(serving: OpenAIServing, access: ClientAccess) -> list[web.RouteDef]:
    info, texts = ServerInfoRoutes(serving, access), TokenizeRoutes(serving)
    adapters = AdapterRoutes(NamedAdapters(serving.async_engine, access.model))
    return [
        web.get("/version", info.version),
        web.get("/metrics", info.metrics),
        web.get("/v1/models", info.models),
        web.post("/v1/completions", CompletionsRoute(serving).completions),
        web.post("/inference/v1/generate", GenerateTokensRoute(serving).generate),
        web.post("/tokenize", texts.tokenize),
        web.post("/detokenize", texts.detokenize),
        web.post("/control/load_adapter", adapters.load),
        web.post("/control/unload_adapter", adapters.unload),
    ]
