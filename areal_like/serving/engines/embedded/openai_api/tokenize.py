"""`/tokenize` and `/detokenize`, as in vLLM."""

import asyncio
from typing import Any

from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.process.http import json_response, read_json
from areal_like.serving.engines.embedded.openai_api.openai_serving import OpenAIServing
from areal_like.serving.engines.embedded.openai_api.parse_request import parse_flag
from areal_like.serving.requests import BadRequest


class TokenizeRoutes:
    def __init__(self, serving: OpenAIServing) -> None:
        self._serving, self._tokenizer = serving, serving.tokenizer

    async def tokenize(self, request: web.Request) -> web.Response:
        """Plain text only: messages need a chat template, which clients apply."""
        body = await self._read(request)
        try:
            await self._serving.load_tokenizer()
            if not isinstance(body.get("prompt"), str):
                raise BadRequest("prompt: give a text; messages are not supported, apply their chat template first")
            ids = await self._serving.encode(body["prompt"], parse_flag(body, "add_special_tokens", True))
            names = parse_flag(body, "return_token_strs")
        except BadRequest as bad:
            raise HttpError(400, str(bad)) from bad
        pieces = [self._tokenizer.get().id_to_token(token) for token in ids] if names else None
        length = self._serving.engine.context_length
        return json_response({"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": pieces})

    async def detokenize(self, request: web.Request) -> web.Response:
        body = await self._read(request)
        tokens = body.get("tokens")
        engine = self._serving.engine
        if not isinstance(tokens, list) or len(tokens) > engine.context_length:
            raise HttpError(400, f"tokens: give a list of at most {engine.context_length} token ids")
        if not all(type(token) is int and 0 <= token < engine.vocab_size for token in tokens):
            raise HttpError(400, f"tokens: give token ids of this model, from 0 to {engine.vocab_size - 1}")
        try:
            await self._serving.load_tokenizer()
        except BadRequest as bad:
            raise HttpError(400, str(bad)) from bad
        return json_response({"prompt": await asyncio.to_thread(self._tokenizer.decode, tokens, False)})

    async def _read(self, request: web.Request) -> dict[str, Any]:
        body = await read_json(request)
        if not isinstance(body, dict):
            raise HttpError(400, "the body is an object")
        try:
            self._serving.adapter_of(body)
        except BadRequest as bad:
            raise HttpError(400, str(bad)) from bad
        return body
