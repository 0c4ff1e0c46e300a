"""HTTP server of a reward model: scores of texts. It has no weight updates and no other commands."""

import asyncio
import math
from typing import Any

from aiohttp import web

from areal_like.process import pulse
from areal_like.process.errors import HttpError
from areal_like.process.http import application, json_response, read_json
from areal_like.process.identity import CallGuard
from areal_like.serving.reward_model.scorer import Scorer

OPEN_PATHS = ("/health",)


class RewardModelServer:
    """`path`: the model as in the configuration."""

    def __init__(self, scorer: Scorer, guard: CallGuard, run_id: str, path: str) -> None:
        self._scorer, self._guard = scorer, guard
        self._info = {"run_id": run_id, "model": path, "longest": scorer.max_length}
        self._lock, self._num_scored = asyncio.Lock(), 0
        self._work = pulse.WorkPulse(pulse.GENERATING)
        self._work.is_of_process()

    def application(self) -> web.Application:
        app = application(self._guard, OPEN_PATHS)
        app.add_routes([web.get("/health", self.health), web.post("/score", self.score)])
        return app

    async def health(self, request: web.Request) -> web.Response:
        """`scored`: by it a caller tells a server that is slow from one that hangs."""
        return json_response({"status": "ok", "scored": self._num_scored, **self._info})

    async def score(self, request: web.Request) -> web.Response:
        """From a list of texts, as token ids, to the list of their scores."""
        texts = await read_json(request)
        self._check(texts)
        async with self._lock:  # in parallel they would only share the cores
            with self._work.running():
                scores = await asyncio.to_thread(self._scorer.scores, texts)
                self._num_scored += 1
        if not all(map(math.isfinite, scores)):
            raise HttpError(500, "the reward model gives scores that are not finite")
        return json_response(scores)

    def _check(self, texts: Any) -> None:
        if not isinstance(texts, list):
            raise HttpError(400, "the body is a list of texts, each a list of token ids")
        for place, text in enumerate(texts):
            if not isinstance(text, list) or not text or not all(type(token) is int for token in text):
                raise HttpError(400, f"text {place} is not a non-empty list of token ids")
            if len(text) > self._scorer.max_length:
                raise HttpError(
                    400, f"text {place} has {len(text)} tokens, and the model takes {self._scorer.max_length}"
                )
            size = self._scorer.vocab_size
            if not 0 <= min(text) <= max(text) < size:
                raise HttpError(400, f"text {place} has a token that is not one of the {size} of the model")
