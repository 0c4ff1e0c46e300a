"""Client for the server of a reward model, `reward/0`."""

import asyncio
import logging
import math
import time
from dataclasses import dataclass
from typing import Any

from areal_like.discovery import NameMissing, NameStore, parse_entry
from areal_like.process.errors import HttpError, Unreachable
from areal_like.process.http import HttpClient
from areal_like.process.identity import REWARD, Identity
from areal_like.process.patience import PATIENCE_KEY
from areal_like.process.wait import NamedWait
from areal_like.rollout.episodes.rewards.deadline import waiting

HEALTH_TIMEOUT_S = 5.0
RETRY_DELAY_S = 0.1
"""Between two lookups of a server that is gone, until it is replaced."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Text:
    token_ids: list[int]
    score: "asyncio.Future[float]"


class ScoreClient:
    """Scores texts. Texts that arrive while a request runs are sent together in the next one.

    A server that is gone or hangs is awaited until it is replaced, in time that is not the answer's. One that scores
    other texts, but gives no score in `call_timeout_s`, is too slow.
    """

    def __init__(self, names: NameStore, me: Identity, secret: str, patience_s: float, call_timeout_s: float) -> None:
        """Waits until the server is registered."""
        self._names, self._me, self._secret, self._call_timeout_s = names, me, secret, call_timeout_s
        self._server = Identity(REWARD, 0).name
        starting = NamedWait(f"the address of {self._server}", patience_s, PATIENCE_KEY)
        self._address = parse_entry(names.wait(self._server, starting)).address
        self._patience_s, self._silent_since = patience_s, math.inf
        self._seen: dict[str, Any] | None = None
        self._waiting: list[_Text] = []
        self._has_texts = asyncio.Event()
        self._calls: asyncio.Task[None] | None = None

    async def score(self, token_ids: list[int]) -> float:
        text = _Text(token_ids, asyncio.get_running_loop().create_future())
        self._waiting.append(text)
        self._has_texts.set()
        if self._calls is None or self._calls.done():
            self._calls = asyncio.create_task(self._run())
        async with waiting():
            return await text.score

    async def _run(self) -> None:
        async with HttpClient(self._me, self._secret) as http:
            while True:
                await self._has_texts.wait()
                self._has_texts.clear()
                texts, self._waiting = [text for text in self._waiting if not text.score.done()], []
                if texts and not await self._call(http, texts):
                    self._waiting += texts
                    self._has_texts.set()
                    await asyncio.sleep(RETRY_DELAY_S)

    async def _call(self, http: HttpClient, texts: list[_Text]) -> bool:
        """Whether the server answered."""
        body = [text.token_ids for text in texts]
        try:
            scores = await http.json("POST", self._address, "/score", body, self._call_timeout_s)
        except Unreachable as fault:
            return await self._is_over(http, texts, fault)
        except HttpError as refusal:
            if len(texts) > 1:  # one of them may be the cause: score the others
                return all([await self._call(http, [text]) for text in texts])
            _fail(texts[0], f"{self._server} refuses it: {refusal.message}")
            return True
        self._silent_since, self._seen = math.inf, None
        for text, score in zip(texts, scores, strict=True):
            if not text.score.done():
                text.score.set_result(float(score))
        return True

    async def _is_over(self, http: HttpClient, texts: list[_Text], fault: Unreachable) -> bool:
        """Whether texts without an answer are given up."""
        now = time.monotonic()
        self._silent_since = min(self._silent_since, now)
        silent_s = now - self._silent_since
        if await self._goes_on(http):
            why = f"{self._server} gave no score within {self._call_timeout_s:g} s (reward.timeout_s)"
        elif silent_s > self._patience_s:
            why = f"{self._server} has not answered for {silent_s:.0f} s ({PATIENCE_KEY}, watchdog): {fault.why}"
        else:
            log.warning("%s: %s", self._server, fault)
            self._look_up()
            return False
        for text in texts:
            _fail(text, why)
        return True

    async def _goes_on(self, http: HttpClient) -> bool:
        """Whether it has scored anything since it was asked before."""
        before = self._seen
        try:
            self._seen = await http.json("GET", self._address, "/health", timeout_s=HEALTH_TIMEOUT_S)
        except (HttpError, Unreachable):
            return False
        return before is not None and before != self._seen

    def _look_up(self) -> None:
        try:
            self._address = parse_entry(self._names.get(self._server)).address
        except NameMissing as missing:
            log.debug("%s", missing)


def _fail(text: _Text, why: str) -> None:
    if not text.score.done():
        text.score.set_exception(RuntimeError(why))
