"""The engine: from groups of token ids to answers, by continuous batching. No HTTP, no threads of its own.

A step lets waiting groups in (each prompt is computed once for all samples of its group, prompts of one length
together) and then decodes one token for every running sequence. Where the cache has no room for the next token, the
newest sequences give their slots back and go on later: the noise of sampling does not depend on any of this.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from areal_like.serving.embedded.cache import BLOCK, blocks
from areal_like.serving.embedded.live import LiveWeights
from areal_like.serving.embedded.noise import uniforms
from areal_like.serving.embedded.queue import Queue, Ticket
from areal_like.serving.embedded.request import BadRequest, Finished, Group
from areal_like.serving.embedded.rows import Interrupted, Rows
from areal_like.serving.embedded.runner import MOST_AT_ONCE, Runner
from areal_like.serving.embedded.sampling import choose

NEVER_TOLD = -1
"""Version of weights that no trainer has sent."""
MARGIN = 64
"""Tokens that a new sequence should find room for, so that it is not interrupted at once."""

T = TypeVar("T")


@dataclass
class Counts:
    """What the engine has done since it was made."""

    groups: int = 0
    samples: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    steps: int = 0
    interrupted: int = 0
    recomputed: int = 0
    busy_s: float = 0.0


class Engine:
    """`context_length` and `kv_cache_tokens` are as in `embedded`; None is what the model can, or no bound."""

    def __init__(
        self,
        model: PreTrainedModel,
        max_running_requests: int = 256,
        context_length: int | None = None,
        kv_cache_tokens: int | None = None,
    ) -> None:
        text = model.config.get_text_config()
        self.dtype = model.dtype
        self.vocab_size: int = text.vocab_size
        self.context_length: int = context_length or text.max_position_embeddings
        self.max_running = max_running_requests
        self.eos_token_ids = _eos_token_ids(model)
        bound = kv_cache_tokens or self.max_running * blocks(self.context_length)
        if bound < BLOCK:
            raise ValueError(f"embedded.kv_cache_tokens: {bound} is too little; the least is {BLOCK}")
        self._runner = Runner(model, bound)
        self.cache = self._runner.cache
        self.weights = LiveWeights(model)
        self.version = NEVER_TOLD
        self.counts = Counts()
        self._rows = Rows(self.max_running)
        self._queue = Queue()
        self._interrupted: deque[Interrupted] = deque()
        self._finished: list[Finished] = []
        self._broken: set[int] = set()
        self._num_tickets = self._turn = 0

    def submit(self, group: Group) -> int:
        """Puts a group into the queue and returns the number of its ticket; raises BadRequest."""
        ticket = Ticket(self._num_tickets, group, self._limit(group))
        self._queue.add(ticket)
        self._num_tickets += 1
        return ticket.number

    @property
    def has_work(self) -> bool:
        return bool(self._rows.count or self._interrupted or self._queue.has_next)

    @property
    def num_running(self) -> int:
        return self._rows.count

    @property
    def num_waiting(self) -> int:
        """Groups that have not begun with all their samples."""
        return len(self._queue)

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """One token for everything that runs; returns what is finished."""
        began = time.perf_counter()
        self._go_on()
        self._admit()
        if self._rows.count:
            self._decode()
        self.counts.steps += 1
        self.counts.busy_s += time.perf_counter() - began
        return self.take_finished()

    def take_finished(self) -> list[Finished]:
        finished, self._finished = self._finished, []
        return finished

    def generate(self, groups: Sequence[Group]) -> list[Finished]:
        """Runs until these are done; the results stand in their order."""
        numbers = [self.submit(group) for group in groups]
        done: dict[int, Finished] = {}
        while self.has_work:
            done.update((finished.ticket, finished) for finished in self.step())
        missing = [number for number in numbers if number not in done]
        if missing:
            raise RuntimeError(f"{len(missing)} groups wait for others of their step (order) that were never submitted")
        results = [done[number] for number in numbers]
        for finished in results:
            if finished.error is not None:
                raise RuntimeError(f"group {finished.id}: {finished.error}")
        return results

    def abort(self, reason: str, is_meant: Callable[[Ticket], bool] = lambda ticket: True) -> int:
        """Ends groups without answers, for a reason that is told to who asked; returns how many."""
        running = {row for row, ticket in enumerate(self._rows.tickets) if is_meant(ticket)}
        meant = {ticket.number: ticket for ticket in self._queue.remove(is_meant)}
        meant.update((one.ticket.number, one.ticket) for one in self._interrupted if is_meant(one.ticket))
        meant.update((self._rows.tickets[row].number, self._rows.tickets[row]) for row in running)
        self._interrupted = deque(one for one in self._interrupted if not is_meant(one.ticket))
        with torch.inference_mode():
            self._remove(running)
        for ticket in meant.values():
            self._finished.append(Finished(ticket.number, ticket.group.id, [], reason))
        return len(meant)

    def update_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """New weights between two steps. Running sequences keep their tokens and go on with the new weights."""
        self.weights.stage(tensors)
        self.swap(version)

    def swap(self, version: int, check: Callable[[], T] | None = None) -> T | None:
        """Makes the staged weights the live ones; where `check` raises, the old ones stay and nothing has happened."""
        self.weights.swap()
        try:
            found = check() if check is not None else None
        except Exception:
            self.weights.swap()
            raise
        self.version = version
        with torch.inference_mode():
            self._compute(np.arange(self._rows.count))
        return found

    @torch.inference_mode()
    def logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Of each token after the first, given those before it, by the live weights at temperature 1."""
        return self._runner.logprobs(token_ids)

    def statistics(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "running": self.num_running,
            "waiting": self.num_waiting,
            "cache": {"rows": self.cache.rows, "columns": self.cache.columns, "limit": self.cache.limit},
            **asdict(self.counts),
        }

    def _limit(self, group: Group) -> int:
        """Most tokens of one answer. The ends of the model and of the request cut an answer off; a cache that is too
        small is refused, since then nobody asked for a shorter one."""
        sampling, length = group.sampling, len(group.prompt)
        most = min(sampling.max_tokens, self.context_length)
        if length >= most:
            key = "gconfig.max_tokens" if sampling.max_tokens < self.context_length else "embedded.context_length"
            raise BadRequest(f"{key}: the prompt has {length} tokens, and {most} leave no room for an answer")
        limit = min(sampling.max_new_tokens, most - length)
        if length + limit > self.cache.limit:
            raise BadRequest(
                f"embedded.kv_cache_tokens: a prompt of {length} tokens and an answer of up to {limit} do not fit into "
                f"{self.cache.limit}; lower gconfig.max_new_tokens or raise embedded.kv_cache_tokens"
            )
        return limit

    def _go_on(self) -> None:
        """Gives slots to interrupted sequences, the oldest first."""
        rows = self._rows
        resumed = []
        while self._interrupted and rows.count < self.max_running:
            one = self._interrupted[0]
            length = len(one.ticket.group.prompt) + len(one.token_ids)
            if not self.cache.fits(rows.count + 1, max(self._width(), self._wanted(one.ticket, length))):
                break
            self._interrupted.popleft()
            resumed.append(rows.resume(one, self._stops(one.ticket)))
        self._compute(np.array(resumed, np.int64))

    def _admit(self) -> None:
        """Lets groups in as long as there is room, and computes their prompts."""
        rows = self._rows
        before = rows.count
        by_length: dict[int, list[tuple[tuple[int, ...], NDArray[np.int64]]]] = {}
        while not self._interrupted and (ticket := self._queue.head(rows.count == 0)) is not None:
            share = self._share(ticket)
            if share == 0:
                break
            if not ticket.admitted:
                ticket.turn = self._turn = self._turn + 1
            prompt = ticket.group.prompt
            samples = range(ticket.admitted, ticket.admitted + share)
            by_length.setdefault(len(prompt), []).append((prompt, rows.begin(ticket, samples, self._stops(ticket))))
            ticket.admitted += share
            if not ticket.num_waiting:
                self._queue.begun(ticket)
        if rows.count == before:
            return
        self.cache.reserve(rows.count, self._width(), before, int(rows.cached[:before].max(initial=0)))
        ended: list[tuple[int, str]] = []
        for length, parts in by_length.items():
            at_once = max(1, MOST_AT_ONCE // length)
            for start in range(0, len(parts), at_once):
                chunk = parts[start : start + at_once]
                logits = self._runner.prompts(chunk)
                self.counts.prompt_tokens += length * len(chunk)
                ended += self._append(np.concatenate([rows for _, rows in chunk]), logits)
        self._end(ended)

    def _decode(self) -> None:
        self._make_room()
        rows = self._rows
        count, width = rows.count, self._width()
        self.cache.reserve(count, width, count, width - 1)
        logits = self._runner.extend(rows.newest[:count], rows.cached[:count])
        rows.cached[:count] += 1
        self._end(self._append(np.arange(count), logits))

    def _append(self, of_row: NDArray[np.int64], logits: torch.Tensor) -> list[tuple[int, str]]:
        rows = self._rows
        noise = uniforms(rows.seed[of_row], rows.sample[of_row], rows.generated[of_row].astype(np.uint64))
        how = (rows.temperature[of_row], rows.greedy[of_row], noise)
        tokens, logprobs = choose(logits, *(self._runner.tensor(array) for array in how))
        self.counts.tokens += len(of_row)
        found = logprobs.cpu().numpy()
        broken = {rows.tickets[row].number for row in of_row[~np.isfinite(found)]}
        self._broken |= broken
        ended = rows.append(of_row, tokens.cpu().numpy(), found, self.version)
        return [end for end in ended if rows.tickets[end[0]].number not in broken] if broken else ended

    def _clean(self) -> None:
        """Ends groups whose numbers are broken, and leaves nothing of these in the cache: a product of 0 and nan would
        carry them into sequences that take over the slot."""
        broken, self._broken = self._broken, set()
        reason = f"the weights of version {self.version} give log-probabilities that are not finite"
        self.abort(reason, lambda ticket: ticket.number in broken)
        self.cache.reset()
        self._compute(np.arange(self._rows.count))

    def _end(self, ended: list[tuple[int, str]]) -> None:
        """Hands in samples that are complete, and groups whose last one it was."""
        rows = self._rows
        gone = dict(ended)
        for row, finish in gone.items():
            ticket, sample = rows.tickets[row], int(rows.sample[row])
            ticket.samples[sample] = rows.take(row, finish)
            self.counts.samples += 1
            if len(ticket.samples) == ticket.group.n:
                samples = [ticket.samples[number] for number in range(ticket.group.n)]
                self._finished.append(Finished(ticket.number, ticket.group.id, samples))
                self.counts.groups += 1
        self._remove(set(gone))
        if self._broken:
            self._clean()

    def _remove(self, gone: set[int]) -> None:
        if not gone:
            return
        to, source = self._rows.remove(gone)
        if to:
            width = int(self._rows.cached[to].max())
            self.cache.move(self._runner.tensor(np.array(to)), self._runner.tensor(np.array(source)), width)

    def _make_room(self) -> None:
        """Interrupts the newest sequences until the next token of all others fits into the cache."""
        rows = self._rows
        while not self.cache.fits(rows.count, self._width()):
            newest = max(range(rows.count), key=lambda row: (rows.tickets[row].turn, rows.sample[row]))
            self._interrupted.appendleft(rows.interrupt(newest))
            self.counts.interrupted += 1
            self._remove({newest})

    def _compute(self, of_row: NDArray[np.int64]) -> None:
        """Keys and values of sequences that have tokens already, anew: after an interruption, or for new weights."""
        rows = self._rows
        if not len(of_row):
            return
        self.cache.reserve(rows.count, self._width(), rows.count, int(rows.cached[: rows.count].max()))
        self._runner.sequences([rows.sequence(row) for row in of_row], of_row)
        self.counts.recomputed += len(of_row)

    def _share(self, ticket: Ticket) -> int:
        """How many samples of a group may begin now: all that wait, or as many as ever fit at once; or none yet."""
        wanted = self._wanted(ticket, len(ticket.group.prompt))
        share = min(ticket.num_waiting, self.max_running, self.cache.limit // blocks(wanted))
        count = self._rows.count + share
        return share if count <= self.max_running and self.cache.fits(count, max(self._width(), wanted)) else 0

    def _wanted(self, ticket: Ticket, length: int) -> int:
        """Columns that a sequence of this length should find free."""
        return min(length + MARGIN, len(ticket.group.prompt) + ticket.limit)

    def _width(self) -> int:
        """Columns that the next step needs."""
        count = self._rows.count
        return int(self._rows.cached[:count].max()) + 1 if count else 0

    def _stops(self, ticket: Ticket) -> list[int]:
        return sorted({*ticket.group.sampling.stop_token_ids, *self.eos_token_ids})


def _eos_token_ids(model: PreTrainedModel) -> list[int]:
    """Of generation_config.json where it names them, else of config.json."""
    for source in (model.generation_config, model.config.get_text_config()):
        found = getattr(source, "eos_token_id", None)
        if found is not None:
            return [found] if isinstance(found, int) else list(found)
    return []
