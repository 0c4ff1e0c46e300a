"""The engine: from groups of token ids to answers, by continuous batching. No HTTP, no threads of its own.

A step lets waiting groups in (each prompt is computed once for all samples of its group, prompts of one length
together) and then decodes one token for every running sequence. Where the cache has no room for the next token, the
newest sequences give their slots back and go on later: the noise of sampling does not depend on any of this. A long
prompt is computed in pieces, one a step, so that what runs is not held up by it.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from areal_like.serving.embedded.core.bounds import answer_limit, end_token_ids, model_end_tokens
from areal_like.serving.embedded.core.cache_budget import CacheBudget
from areal_like.serving.embedded.core.chunked_prefill import PREFILL_CHUNK
from areal_like.serving.embedded.core.counts import EngineCounts
from areal_like.serving.embedded.core.kv_cache import BLOCK_SIZE, round_up_to_block
from areal_like.serving.embedded.core.model_runner import ModelRunner
from areal_like.serving.embedded.core.offline import generate
from areal_like.serving.embedded.core.output_tracker import completed_stops
from areal_like.serving.embedded.core.prompt_logprobs import PromptLogprobs, prompt_logprobs
from areal_like.serving.embedded.core.running_batch import PreemptedSequence, RunningBatch
from areal_like.serving.embedded.core.sampler import NO_DISTRIBUTION, next_tokens
from areal_like.serving.embedded.core.scheduler import Scheduler
from areal_like.serving.embedded.core.tokenizer import LazyTokenizer
from areal_like.serving.embedded.core.waiting_queue import QueuedGroup, WaitingQueue
from areal_like.serving.embedded.weights.adapters import AdapterRegistry
from areal_like.serving.embedded.weights.batched_lora import ServedAdapter
from areal_like.serving.embedded.weights.double_buffer import DoubleBuffer
from areal_like.serving.requests import FinishedGroup, GroupRequest
from areal_like.weights.versions import NO_VERSION

T = TypeVar("T")


class LLMEngine:
    """`context_length` and `kv_cache_tokens` are as in `embedded`; None is what the model can, or no bound. Texts that
    end answers need a tokenizer; a prompt of more than `piece` tokens is a long one."""

    def __init__(
        self,
        model: PreTrainedModel,
        max_running_requests: int = 256,
        context_length: int | None = None,
        kv_cache_tokens: int | None = None,
        tokenizer: LazyTokenizer | None = None,
        piece: int = PREFILL_CHUNK,
    ) -> None:
        text = model.config.get_text_config()
        self.dtype = model.dtype
        self.vocab_size: int = text.vocab_size
        self.context_length: int = context_length or text.max_position_embeddings
        self.max_running = max_running_requests
        self.eos_token_ids = model_end_tokens(model)
        bound = kv_cache_tokens or self.max_running * round_up_to_block(self.context_length)
        if bound < BLOCK_SIZE:
            raise ValueError(f"embedded.kv_cache_tokens: {bound} is too little; the least is {BLOCK_SIZE}")
        self._rows = RunningBatch(self.max_running)
        self._runner = ModelRunner(model, bound, self._rows.adapter)
        self.cache = self._runner.cache
        self.weights = DoubleBuffer(model)
        self.adapters = AdapterRegistry(model, model.dtype, model.device)
        self.version = self.base_version = NO_VERSION
        self.tokenizer = tokenizer or LazyTokenizer(None)
        self.counts = EngineCounts()
        self._queue, self._piece = WaitingQueue(), piece
        self._room = CacheBudget(self._rows, self.cache, self.max_running)
        parts = self._queue, self._rows, self._room, self._runner, self.counts
        self._admission = Scheduler(*parts, lambda: self.adapters.current, piece)
        self._interrupted: deque[PreemptedSequence] = deque()
        self._finished: list[FinishedGroup] = []
        self._broken: set[int] = set()
        self._unusable: dict[int, str] = {}
        self.next_deadline = math.inf
        """When `expire` has something to do, by the monotonic clock."""
        self.admits = True
        """While false, what has begun goes on and nothing else begins."""
        self._num_tickets = 0

    def submit(self, group: GroupRequest) -> int:
        """Puts a group into the queue and returns the number of its ticket; raises BadRequest."""
        limit = answer_limit(group, self.context_length, self.cache.limit)
        ends = end_token_ids(group, self.eos_token_ids, self.vocab_size)
        ticket = QueuedGroup(self._num_tickets, group, limit, ends)
        if group.sampling.stop:
            self.tokenizer.get()  # where there is none, that is told now
        if group.deadline_s is not None:
            ticket.deadline = time.monotonic() + group.deadline_s
            self.next_deadline = min(self.next_deadline, ticket.deadline)
        if group.adapter:
            ticket.adapter = self.adapters.named(group.adapter)
        self._queue.add(ticket)
        self._num_tickets += 1
        return ticket.number

    @property
    def has_work(self) -> bool:
        return bool(self._rows.count or self._interrupted or (self.admits and self._queue.has_next))

    @property
    def is_wanted_by_the_run(self) -> bool:
        return self._queue.holds_clients_back

    @property
    def num_running(self) -> int:
        return self._rows.count

    @property
    def num_waiting(self) -> int:
        """Groups that have not begun with all their samples."""
        return len(self._queue)

    @property
    def num_begun(self) -> int:
        """Sequences that have tokens and are not done, also those without a slot."""
        return self._rows.count + len(self._interrupted)

    @torch.inference_mode()
    def step(self) -> list[FinishedGroup]:
        """One token for everything that runs; returns what is finished."""
        began = time.perf_counter()
        self._go_on()
        self._admit()
        if self._rows.count:
            self._decode()
        self.counts.steps += 1
        self.counts.busy_s += time.perf_counter() - began
        return self.take_finished()

    def take_finished(self) -> list[FinishedGroup]:
        finished, self._finished = self._finished, []
        return finished

    def generate(self, groups: Sequence[GroupRequest]) -> list[FinishedGroup]:
        """Runs until these are done; the results stand in their order."""
        return generate(self, groups)

    def abort(self, reason: str, is_meant: Callable[[QueuedGroup], bool] = lambda ticket: True) -> int:
        """Ends groups without answers, for a reason that is told to who asked; returns how many."""
        running = {row for row, ticket in enumerate(self._rows.tickets) if is_meant(ticket)}
        meant = {ticket.number: ticket for ticket in self._queue.remove(is_meant)}
        meant.update((one.ticket.number, one.ticket) for one in self._interrupted if is_meant(one.ticket))
        meant.update((self._rows.tickets[row].number, self._rows.tickets[row]) for row in running)
        self._interrupted = deque(one for one in self._interrupted if not is_meant(one.ticket))
        with torch.inference_mode():
            self._remove(running)
        for ticket in meant.values():
            self._admission.forget(ticket)
            self._finished.append(FinishedGroup(ticket.number, ticket.group.id, [], reason))
        return len(meant)

    def expire(self) -> None:
        """Ends groups whose time is over."""
        now = time.monotonic()
        if now < self.next_deadline:
            return
        tickets = set(self._under_way())
        late = {ticket for ticket in tickets if ticket.deadline <= now}
        for seconds in {ticket.group.deadline_s for ticket in late}:
            meant = {ticket for ticket in late if ticket.group.deadline_s == seconds}
            reason = f"deadline: not done within {seconds:g} s (deadline_s)"
            self.counts.expired += self.abort(reason, meant.__contains__)
        self.next_deadline = min((ticket.deadline for ticket in tickets - late), default=math.inf)

    def set_aside(self) -> None:
        """Takes the slots of all that runs. It goes on from the tokens that it has."""
        order = sorted(range(self._rows.count), key=self._age)
        self._interrupted.extendleft(self._rows.interrupt(row) for row in reversed(order))
        self.counts.interrupted += len(order)
        with torch.inference_mode():
            self._remove(set(order))

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
        self.version = self.base_version = version
        self._admission.forget()
        self.adapters.current = None
        with torch.inference_mode():
            self._compute(np.arange(self._rows.count))
        return found

    def forget_adapter(self) -> None:
        """The run's versions so far are none of it any more; adapters of others stay."""
        self.adapters.current = None
        self._drop_old_adapters()

    def adapt(self, adapter: ServedAdapter, version: int) -> None:
        """New weights as an adapter: groups that begin from now on have it, and those under way end with theirs."""
        self.adapters.take(adapter)
        self.version = version
        self._drop_old_adapters()

    @torch.inference_mode()
    def logprobs(self, token_ids: Sequence[int], adapter: ServedAdapter | None = None) -> list[float]:
        """Of each token after the first, given those before it, by the live weights at temperature 1."""
        return self._runner.logprobs(token_ids, adapter)

    def prompt_chances(self, group: GroupRequest, number: int) -> Generator[None, None, PromptLogprobs]:
        """Of a prompt, with so many of the likeliest tokens in each place; computed in pieces."""
        adapter = self.adapters.named(group.adapter) if group.adapter else None
        return prompt_logprobs(self._runner, self.weights, group.prompt, number, adapter, self._piece)

    def statistics(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "running": self.num_running,
            "waiting": self.num_waiting,
            "set_aside": len(self._interrupted),
            "cache": {"rows": self.cache.rows, "columns": self.cache.columns, "limit": self.cache.limit},
            **asdict(self.counts),
        }

    def _go_on(self) -> None:
        """Gives slots to interrupted sequences, the oldest first."""
        rows = self._rows
        resumed = []
        while self._interrupted:
            one = self._interrupted[0]
            if not self._room.is_there(1, one.ticket, len(one.ticket.group.prompt) + len(one.token_ids)):
                break
            self._interrupted.popleft()
            resumed.append(rows.resume(one))
        self._compute(np.array(resumed, np.int64))

    def _admit(self) -> None:
        """Lets groups in as long as there is room, and computes their prompts."""
        rows = self._rows
        before = rows.count
        if self._interrupted or not self.admits:
            return
        begun = self._admission.admit()
        self._unusable |= begun.unusable
        if rows.count > before:
            self.cache.reserve(rows.count, self._room.width, before, int(rows.cached[:before].max(initial=0)))
            self._end([end for of_row, logits in self._admission.logits(begun) for end in self._append(of_row, logits)])
        else:
            self._refuse()

    def _decode(self) -> None:
        self._make_room()
        rows = self._rows
        count, width = rows.count, self._room.width
        self.cache.reserve(count, width, count, width - 1)
        logits = self._runner.extend(rows.newest[:count], rows.cached[:count])
        rows.cached[:count] += 1
        self._end(self._append(np.arange(count), logits))

    def _append(self, of_row: NDArray[np.int64], logits: torch.Tensor) -> list[tuple[int, str]]:
        rows = self._rows
        tokens, found, by_request = next_tokens(rows, of_row, logits, self._runner.tensor)
        self.counts.tokens += len(of_row)
        self._unusable |= {rows.tickets[row].number: NO_DISTRIBUTION for row in of_row[by_request]}
        self._broken |= {rows.tickets[row].number for row in of_row[~np.isfinite(found) & ~by_request]}
        followed = rows.followed_of(of_row)
        early = rows.is_early(of_row).tolist() if followed else []
        ended = rows.append(of_row, tokens, found, self.base_version)
        if followed:
            by_text, unread = completed_stops(self.tokenizer, followed, tokens.tolist(), early)
            ended = list({**dict(ended), **{int(of_row[place]): "stop" for place in by_text}}.items())
            self._unusable |= {rows.tickets[of_row[place]].number: why for place, why in unread.items()}
        gone = self._broken | self._unusable.keys()
        return [end for end in ended if rows.tickets[end[0]].number not in gone] if gone else ended

    def _refuse(self) -> None:
        """Ends groups whose own numbers cannot be used, and leaves all others as they are."""
        unusable, self._unusable = self._unusable, {}
        for reason in set(unusable.values()):
            self.abort(reason, _is_numbered({number for number, why in unusable.items() if why == reason}))

    def _clean(self) -> None:
        """Ends groups whose numbers are broken, and leaves nothing of these in the cache: a product of 0 and nan would
        carry them into sequences that take over the slot."""
        broken, self._broken = self._broken, set()
        reason = f"the weights of version {self.version} give log-probabilities that are not finite"
        self.abort(reason, lambda ticket: ticket.number in broken)
        self.cache.reset()
        self._admission.forget()
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
                self._finished.append(FinishedGroup(ticket.number, ticket.group.id, samples))
                self.counts.groups += 1
        self._remove(set(gone))
        self._refuse()
        if self._broken:
            self._clean()

    def _remove(self, gone: set[int]) -> None:
        if not gone:
            return
        to, source = self._rows.remove(gone)
        if to:
            width = int(self._rows.cached[to].max())
            self.cache.move(self._runner.tensor(np.array(to)), self._runner.tensor(np.array(source)), width)
        if self.adapters.has_old:
            self._drop_old_adapters()

    def _drop_old_adapters(self) -> None:
        self.adapters.drop_old({ticket.adapter for ticket in self._under_way()})

    def _under_way(self) -> Iterator[QueuedGroup]:
        """Of every group that is not done, some of them more than once."""
        return chain(self._rows.tickets, self._queue, (one.ticket for one in self._interrupted))

    def _make_room(self) -> None:
        """Interrupts the newest sequences until the next token of all others fits into the cache."""
        rows = self._rows
        while not self.cache.fits(rows.count, self._room.width):
            newest = max(range(rows.count), key=self._age)
            self._interrupted.appendleft(rows.interrupt(newest))
            self.counts.interrupted += 1
            self._remove({newest})

    def _age(self, row: int) -> tuple[int, int]:
        """The smaller, the older."""
        return self._rows.tickets[row].turn, int(self._rows.sample[row])

    def _compute(self, of_row: NDArray[np.int64]) -> None:
        """Keys and values of sequences that have tokens already, anew: after an interruption, or for new weights."""
        rows = self._rows
        if not len(of_row):
            return
        self.cache.reserve(rows.count, self._room.width, rows.count, int(rows.cached[: rows.count].max()))
        self._runner.sequences([rows.sequence(row) for row in of_row], of_row)
        self.counts.recomputed += len(of_row)


def _is_numbered(numbers: set[int]) -> Callable[[QueuedGroup], bool]:
    return lambda ticket: ticket.number in numbers
