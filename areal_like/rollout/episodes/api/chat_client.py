"""Requests to an OpenAI-compatible API, one for each answer. What may pass is tried again, with growing delays."""

import asyncio
import json
import logging
import random
import time
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp

from areal_like.process.errors import FinalFailure
from areal_like.process.http_body import read_body
from areal_like.rollout.episodes.api.parameters import TakenParameters, parameters
from areal_like.rollout.episodes.api.text_codec import END, request_of
from areal_like.rollout.episodes.generation_client import GenerationError, LeaseRoute

RETRIED = (408, 409, 425, 429)
"""Statuses, besides those of 500 and more, after which the same request may succeed."""
REFUSED_KEY, BAD_REQUEST = (401, 403), 400
FIRST_DELAY_S, MAX_DELAY_S = 0.5, 60.0
MAX_SEED = 1 << 31
MAX_SHOWN = 200
"""Characters of an answer that are shown in an error."""

log = logging.getLogger(__name__)


class Refused(Exception):
    """An answer that is none. `delay_s`: as the service asks for; None: the same request would be refused again.
    `of_request`: the whole text, where the service finds fault with the request."""

    def __init__(self, reason: str, delay_s: float | None = 0.0, of_request: str = "") -> None:
        super().__init__(reason)
        self.delay_s, self.of_request = delay_s, of_request


class ChatClient:
    """An `AnswerSource`. `key` is sent to the service and never shown. A service that limits the rate makes all
    requests of this client wait. The server of a lease is the address, which ends with `/v1`."""

    def __init__(self, model: str, key: str, max_concurrent: int, retries: int, timeout_s: float) -> None:
        self._model, self._key, self._retries, self._timeout_s = model, key, retries, timeout_s
        self._turns = asyncio.Semaphore(max_concurrent)
        self._not_before = 0.0
        self._taken = TakenParameters()
        self._session: aiohttp.ClientSession | None = None

    async def generate(self, route: LeaseRoute, group: dict[str, Any]) -> list[dict[str, Any]]:
        body = {"model": self._model, **request_of(group["prompt"]), **parameters(group["sampling"])}
        seeds = [group["seed"] + sample for sample in range(group["n"])]
        url = f"{route.server}/chat/completions"
        asked = [asyncio.create_task(self._answer(url, {**body, "seed": seed % MAX_SEED})) for seed in seeds]
        try:
            return await asyncio.gather(*asked)
        finally:
            for each in asked:
                each.cancel()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _answer(self, url: str, body: dict[str, Any]) -> dict[str, Any]:
        delay_s = FIRST_DELAY_S
        for tries in range(self._retries + 1):
            try:
                async with self._turns:
                    await asyncio.sleep(max(0.0, self._not_before - time.monotonic()))
                    return _sample(await self._ask(url, body))
            except Refused as refusal:
                reason = str(refusal)
                if refusal.delay_s is None:
                    raise GenerationError(f"the API refuses the request: {reason}") from None
                if refusal.delay_s:
                    self._not_before = max(self._not_before, time.monotonic() + min(refusal.delay_s, MAX_DELAY_S))
            if tries < self._retries:
                log.warning("the API gave no answer (%s); retrying", reason)
                # Spread, so that requests which failed together do not come back together.
                await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
                delay_s = min(2 * delay_s, MAX_DELAY_S)
        raise GenerationError(
            f"no answer of the API after {self._retries + 1} tries (rollout.request_retries): {reason}"
        )

    async def _ask(self, url: str, body: dict[str, Any]) -> Any:
        """With the parameters that the model takes."""
        while True:
            sent = self._taken.of(body)
            try:
                return await self._post(url, sent)
            except Refused as refusal:
                if not self._taken.learn(sent, refusal.of_request):
                    raise

    async def _post(self, url: str, body: dict[str, Any]) -> Any:
        if self._session is None:
            limit = aiohttp.ClientTimeout(total=self._timeout_s)
            headers = {"Authorization": f"Bearer {self._key}"}
            self._session = aiohttp.ClientSession(headers=headers, timeout=limit, trust_env=True)
        try:
            async with self._session.post(url, json=body) as response:
                text = (await read_body(response)).decode("utf-8", "replace")
                if response.status < 300:
                    return json.loads(text)
        except TimeoutError:
            raise Refused(f"none within {self._timeout_s:g} s (rollout.request_timeout)") from None
        except aiohttp.ClientError as fault:
            raise Refused(self._shown(f"{type(fault).__name__}: {fault}")) from None
        except (ValueError, RecursionError):
            raise Refused(f"it is not JSON: {self._shown(text)}") from None
        status, reason = response.status, f"status {response.status}: {self._shown(text)}"
        if status in REFUSED_KEY:
            raise FinalFailure(f"rollout.api_key_var: the API at {url} refuses the key ({reason})")
        if status < 500 and status not in RETRIED:
            raise Refused(reason, None, text if status == BAD_REQUEST else "")
        raise Refused(reason, seconds_of(response.headers.get("Retry-After")))

    def _shown(self, text: str) -> str:
        """Without the key, which a service may repeat."""
        shown = text.replace(self._key, "<key>") if self._key else text
        return " ".join(shown.split())[:MAX_SHOWN]


def seconds_of(text: str | None) -> float:
    """The header Retry-After: seconds, or a date."""
    if text is None:
        return 0.0
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0


def _sample(reply: Any) -> dict[str, Any]:
    try:
        choice = reply["choices"][0]
        text = choice["message"]["content"]
        finish = "length" if choice.get("finish_reason") == "length" else "stop"
    except (KeyError, IndexError, TypeError, AttributeError):
        raise Refused(f"it is no chat completion: {str(reply)[:MAX_SHOWN]}") from None
    if text is None:
        text = ""
    if not isinstance(text, str):
        raise Refused(f"its content is not a text: {str(text)[:MAX_SHOWN]}")
    ids = [*map(ord, text.encode("utf-8", "replace").decode()), END]  # half of a surrogate pair, where it was cut off
    return {"token_ids": ids, "logprobs": [0.0] * len(ids), "versions": [0] * len(ids), "finish": finish}
