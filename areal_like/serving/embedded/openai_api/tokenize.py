"""`/tokenize` and `/detokenize`, in vLLM's shapes."""

import asyncio
from typing import Any

from aiohttp import web

from areal_like.process.errors import HttpError
from areal_like.process.http import json_response, read_json
from areal_like.serving.embedded.openai_api import parse_request
from areal_like.serving.embedded.openai_api.clients import OpenAIServing
from areal_like.serving.requests import BadRequest


class TokenizeRoutes:
    def __init__(self, outside: OpenAIServing) -> None:
        self._outside, self._tokenizer = outside, outside.tokenizer

    async def tokenize(self, request: web.Request) -> web.Response:
        """Of a plain text; messages are rendered by who has the chat template."""
        said = await self._read(request)
        try:
            await self._outside.load_tokenizer()
            if not isinstance(said.get("prompt"), str):
                raise BadRequest("prompt: give a text; messages have no place here, apply their chat template first")
            ids = await self._outside.encode(said["prompt"], parse_request.parse_flag(said, "add_special_tokens", True))
            names = parse_request.parse_flag(said, "return_token_strs")
        except BadRequest as bad:
            raise HttpError(400, str(bad)) from bad
        pieces = [self._tokenizer.get().id_to_token(token) for token in ids] if names else None
        length = self._outside.engine.context_length
        return json_response({"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": pieces})

    async def detokenize(self, request: web.Request) -> web.Response:
        said = await self._read(request)
        tokens = said.get("tokens")
        engine = self._outside.engine
        if not isinstance(tokens, list) or len(tokens) > engine.context_length:
            raise HttpError(400, f"tokens: give a list of at most {engine.context_length} token ids")
        if not all(type(token) is int and 0 <= token < engine.vocab_size for token in tokens):
            raise HttpError(400, f"tokens: give token ids of this model, from 0 to {engine.vocab_size - 1}")
        try:
            await self._outside.load_tokenizer()
        except BadRequest as bad:
            raise HttpError(400, str(bad)) from bad
        return json_response({"prompt": await asyncio.to_thread(self._tokenizer.decode, tokens, False)})

    async def _read(self, request: web.Request) -> dict[str, Any]:
        said = await read_json(request)
        if not isinstance(said, dict):
            raise HttpError(400, "the body is an object")
        try:
            self._outside.adapter_of(said)
        except BadRequest as bad:
            raise HttpError(400, str(bad)) from bad
        return said
