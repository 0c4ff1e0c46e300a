"""Calls of the server of a reward model, `reward/0`."""

import asyncio
import logging
from dataclasses import dataclass

from areal_like.discovery import NameMissing, NameStore, parse_entry
from areal_like.process.errors import HttpError, Unreachable
from areal_like.process.http import HttpClient
from areal_like.process.identity import REWARD, Identity
from areal_like.process.wait import NamedWait

RETRY_DELAY_S = 0.1
"""Between two looks for a server that is gone: another one takes its place."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Text:
    token_ids: list[int]
    score: "asyncio.Future[float]"


class ScoreClient:
    """Scores of texts: those that are asked for while a call is under way go together with the next one.

    A server that is gone is waited for as long as somebody waits for a score.
    """

    def __init__(
        self, names: NameStore, me: Identity, secret: str, setup_timeout_s: float, call_timeout_s: float
    ) -> None:
        """Returns once the server has entered its name."""
        self._names, self._me, self._secret, self._call_timeout_s = names, me, secret, call_timeout_s
        self._server = Identity(REWARD, 0).name
        waiting = NamedWait(f"the address of {self._server}", setup_timeout_s, "rollout.setup_timeout")
        self._address = parse_entry(names.wait(self._server, waiting)).address
        self._waiting: list[_Text] = []
        self._some = asyncio.Event()
        self._calls: asyncio.Task[None] | None = None

    async def score(self, token_ids: list[int]) -> float:
        text = _Text(token_ids, asyncio.get_running_loop().create_future())
        self._waiting.append(text)
        self._some.set()
        if self._calls is None or self._calls.done():
            self._calls = asyncio.create_task(self._call_for_ever())
        return await text.score

    async def _call_for_ever(self) -> None:
        async with HttpClient(self._me, self._secret) as caller:
            while True:
                await self._some.wait()
                self._some.clear()
                texts, self._waiting = [text for text in self._waiting if not text.score.done()], []
                if texts and not await self._call(caller, texts):
                    self._waiting += texts
                    self._some.set()
                    await asyncio.sleep(RETRY_DELAY_S)

    async def _call(self, caller: HttpClient, texts: list[_Text]) -> bool:
        """Whether there was an answer for these."""
        body = [text.token_ids for text in texts]
        try:
            scores = await caller.json("POST", self._address, "/score", body, self._call_timeout_s)
        except Unreachable as gone:
            log.warning("%s: %s", self._server, gone)
            self._find()
            return False
        except HttpError as refusal:
            if len(texts) > 1:  # one of them may be at fault, and the others are not
                return all([await self._call(caller, [text]) for text in texts])
            _fail(texts[0], f"{self._server} says: {refusal.message}")
            return True
        for text, score in zip(texts, scores, strict=True):
            if not text.score.done():
                text.score.set_result(float(score))
        return True

    def _find(self) -> None:
        try:
            self._address = parse_entry(self._names.get(self._server)).address
        except NameMissing as nobody:
            log.debug("%s", nobody)


def _fail(text: _Text, why: str) -> None:
    if not text.score.done():
        text.score.set_exception(RuntimeError(why))
