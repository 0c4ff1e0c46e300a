"""LLM engine: groups of token ids in, answers out, by continuous batching. No HTTP and no threads.

A step starts waiting groups (a prompt is computed once for all samples of its group, prompts of one length together),
then decodes one token for every running sequence. When the cache is full the newest sequences are preempted and resumed
later; this does not change the sampling noise. Long prompts are computed in chunks, one per step.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from areal_like.config.sections.engines.base import EngineKeys
from areal_like.config.sections.engines.keys import EMBEDDED as KEYS
from areal_like.serving.engines.embedded.core.counts import EngineCounts
from areal_like.serving.engines.embedded.core.decode_graphs import Capture
from areal_like.serving.engines.embedded.core.kv_cache import BLOCK_SIZE, round_up_to_block
from areal_like.serving.engines.embedded.core.model_runner import ModelRunner, PromptLogprobs, prompt_logprobs
from areal_like.serving.engines.embedded.core.running_batch import RunningBatch, completed_stops
from areal_like.serving.engines.embedded.core.sampler import NO_DISTRIBUTION, next_tokens
from areal_like.serving.engines.embedded.core.scheduler import PREFILL_CHUNK, Scheduler
from areal_like.serving.engines.embedded.core.tokenizer import LazyTokenizer
from areal_like.serving.engines.embedded.core.waiting_queue import QueuedGroup
from areal_like.serving.engines.embedded.weights.adapters import AdapterRegistry
from areal_like.serving.engines.embedded.weights.batched_lora import ServedAdapter
from areal_like.serving.engines.embedded.weights.double_buffer import DoubleBuffer
from areal_like.serving.requests import BadRequest, FinishedGroup, GroupRequest, max_answer_tokens
from areal_like.weights.versions import NO_VERSION

T = TypeVar("T")


class LLMEngine:
    """`context_length` and `kv_cache_tokens` are as in `embedded`; None: the model's own, and no limit. Stop texts need
    a tokenizer. A prompt of more than `prefill_chunk` tokens is a long one. `capture`: how decode steps are captured;
    None: they are not. `keys`: of the engine that is built on this one, for its messages."""

    def __init__(
        self,
        model: PreTrainedModel,
        max_running_requests: int = 256,
        context_length: int | None = None,
        kv_cache_tokens: int | None = None,
        tokenizer: LazyTokenizer | None = None,
        prefill_chunk: int = PREFILL_CHUNK,
        capture: Capture | None = None,
        keys: EngineKeys = KEYS,
    ) -> None:
        text = model.config.get_text_config()
        self.keys = keys
        self.dtype = model.dtype
        self.vocab_size: int = text.vocab_size
        self.context_length: int = context_length or text.max_position_embeddings
        self.max_running = max_running_requests
        self.eos_token_ids = _eos_tokens(model)
        cache_tokens = kv_cache_tokens or self.max_running * round_up_to_block(self.context_length)
        if cache_tokens < BLOCK_SIZE:
            raise ValueError(f"{keys.cache_tokens_key}: {cache_tokens} is too small; set at least {BLOCK_SIZE}")
        self._batch = RunningBatch(self.max_running)
        self.weights = DoubleBuffer(model)
        self.runner = ModelRunner(model, cache_tokens, self._batch.adapter, self.weights, self.max_running, capture)
        self.cache = self.runner.cache
        self.adapters = AdapterRegistry(model, model.dtype, model.device)
        self.version = self.base_version = NO_VERSION
        self.tokenizer = tokenizer or LazyTokenizer(None)
        self.counts = EngineCounts()
        self._prefill_chunk = prefill_chunk
        self._scheduler = Scheduler(
            self._batch, self.runner, self.adapters, self.counts, self.max_running, prefill_chunk
        )
        self.waiting = self._scheduler.waiting
        self._finished: list[FinishedGroup] = []
        self._nonfinite: set[int] = set()
        self._unusable: dict[int, str] = {}
        self.starts_groups = True
        """While false, running groups continue and no other starts."""
        self._num_groups = 0

    @torch.inference_mode()
    def warm_up(self) -> None:
        """An unsupported model, or a cache that does not fit, fails now, and the first request finds the model warm."""
        self.runner.logprobs([0, 0])
        if self.cache.is_fixed:
            self.runner.reserve(1, 1, 0, 0)
            self.runner.prefill_chunk([0], 0, 1, None)
            self.cache.drop_chunks()

    def submit(self, group: GroupRequest) -> int:
        """Adds a group to the queue and returns its number; raises BadRequest."""
        limit = self._answer_limit(group)
        queued = QueuedGroup(self._num_groups, group, limit, self._stop_tokens(group))
        if group.sampling.stop:
            self.tokenizer.get()  # a missing tokenizer is reported now
        if group.adapter:
            queued.adapter = self.adapters.get(group.adapter)
        self.waiting.add(queued)
        self._num_groups += 1
        return queued.number

    @property
    def has_work(self) -> bool:
        return bool(self._batch.count or self._scheduler.preempted or (self.starts_groups and self.waiting.has_next))

    @property
    def run_has_priority(self) -> bool:
        return self.waiting.run_has_priority

    @property
    def num_running(self) -> int:
        return self._batch.count

    @property
    def num_waiting(self) -> int:
        """Groups of which some samples have not started."""
        return len(self.waiting)

    @property
    def num_started(self) -> int:
        """Sequences that have tokens and are not done, with or without a slot."""
        return self._batch.count + len(self._scheduler.preempted)

    @torch.inference_mode()
    def step(self) -> list[FinishedGroup]:
        """One token for every running sequence; returns finished groups."""
        began = time.perf_counter()
        self._recompute(self._scheduler.resume_preempted())
        self._prefill()
        if self._batch.count:
            self._decode()
        self.counts.steps += 1
        self.counts.busy_s += time.perf_counter() - began
        return self.take_finished()

    def take_finished(self) -> list[FinishedGroup]:
        finished, self._finished = self._finished, []
        return finished

    def generate(self, groups: Sequence[GroupRequest]) -> list[FinishedGroup]:
        """Runs these groups to the end, without a server; results are in their order."""
        numbers = [self.submit(group) for group in groups]
        done: dict[int, FinishedGroup] = {}
        while self.has_work:
            done.update((finished.number, finished) for finished in self.step())
        if missing := [number for number in numbers if number not in done]:
            raise RuntimeError(f"{len(missing)} groups wait for others of their step (order) that were never submitted")
        results = [done[number] for number in numbers]
        for finished in results:
            if finished.error is not None:
                raise RuntimeError(f"group {finished.id}: {finished.error}")
        return results

    def abort(self, reason: str, matches: Callable[[QueuedGroup], bool] = lambda queued: True) -> int:
        """Ends groups without answers; `reason` is their error. Returns how many."""
        aborted = self._scheduler.remove(matches)
        self._finished += [FinishedGroup(queued.number, queued.group.id, [], reason) for queued in aborted]
        return len(aborted)

    def preempt_all(self) -> None:
        """Frees the slots of all running sequences; each resumes later from its tokens."""
        self._scheduler.preempt_all()

    def update_weights(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """New weights between two steps; running sequences keep their tokens."""
        self.weights.stage(tensors)
        self.swap(version)

    def swap(self, version: int, check: Callable[[], T] | None = None) -> T | None:
        """Serves the staged weights, and returns the result of `check`; if that raises, the old weights stay."""
        self.weights.swap()
        try:
            result = check() if check is not None else None
        except Exception:
            self.weights.swap()
            raise
        self.version = self.base_version = version
        self._scheduler.drop_chunks()
        self.adapters.current = None
        with torch.inference_mode():
            self._recompute(np.arange(self._batch.count))
        return result

    def name_version(self, version: int) -> None:
        """The weights that are in use are this version."""
        self.version = self.base_version = version

    def clear_adapter(self) -> None:
        """Stops serving the run's adapter; adapters that were loaded by name stay."""
        self.adapters.current = None
        self._scheduler.drop_old_adapters()

    def serve_adapter(self, adapter: ServedAdapter, version: int) -> None:
        """New weights as an adapter: groups that start from now on use it, running groups keep theirs."""
        self.adapters.set_current(adapter)
        self.version = version
        self._scheduler.drop_old_adapters()

    @torch.inference_mode()
    def logprobs(self, token_ids: Sequence[int], adapter: ServedAdapter | None = None) -> list[float]:
        """Of each token after the first, given those before it, by the served weights at temperature 1."""
        return self.runner.logprobs(token_ids, adapter)

    def prompt_logprobs(self, group: GroupRequest, num_top: int) -> Generator[None, None, PromptLogprobs]:
        """Of a group's prompt, with `num_top` most likely tokens in each place; computed in chunks."""
        adapter = self.adapters.get(group.adapter) if group.adapter else None
        return prompt_logprobs(self.runner, self.weights, group.prompt, num_top, adapter, self._prefill_chunk)

    def statistics(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "running": self.num_running,
            "waiting": self.num_waiting,
            "set_aside": len(self._scheduler.preempted),
            "graphs": None if self.runner.graphs is None else asdict(self.runner.graphs.counts),
            "cache": {"rows": self.cache.rows, "columns": self.cache.columns, "limit": self.cache.limit},
            **asdict(self.counts),
        }

    def _prefill(self) -> None:
        """Starts groups while there is space, and computes their prompts and first tokens."""
        batch, before = self._batch, self._batch.count
        if self._scheduler.preempted or not self.starts_groups:
            return
        prefill = self._scheduler.start_groups()
        self._unusable |= prefill.failed
        if batch.count == before:
            self._abort_unusable()
            return
        used_columns = int(batch.cached[:before].max(initial=0))
        self.runner.reserve(batch.count, self._scheduler.budget.width, before, used_columns)
        logits = self._scheduler.prefill_logits(prefill)
        self._finish([end for rows, logits_RV in logits for end in self._sample(rows, logits_RV)])

    def _decode(self) -> None:
        self._scheduler.preempt_newest()
        batch = self._batch
        count, width = batch.count, self._scheduler.budget.width
        self.runner.reserve(count, width, count, width - 1)
        logits = self.runner.decode(batch.newest[:count], batch.cached[:count])
        batch.cached[:count] += 1
        self._finish(self._sample(np.arange(count), logits))

    def _sample(self, rows: NDArray[np.int64], logits_RV: torch.Tensor) -> list[tuple[int, str]]:
        """Samples and appends the next token of each row; returns the rows that end with it, and how."""
        batch = self._batch
        tokens, logprobs, by_request = next_tokens(batch, rows, logits_RV, self.runner.tensor)
        self.counts.tokens += len(rows)
        self._unusable |= {batch.groups[row].number: NO_DISTRIBUTION for row in rows[by_request]}
        self._nonfinite |= {batch.groups[row].number for row in rows[~np.isfinite(logprobs) & ~by_request]}
        trackers = batch.trackers_of(rows)
        must_continue = batch.must_continue(rows).tolist() if trackers else []
        ended = batch.append(rows, tokens, logprobs, self.base_version)
        if trackers:
            by_text, unreadable = completed_stops(self.tokenizer, trackers, tokens.tolist(), must_continue)
            ended = list({**dict(ended), **{int(rows[place]): "stop" for place in by_text}}.items())
            self._unusable |= {batch.groups[rows[place]].number: reason for place, reason in unreadable.items()}
        aborted = self._nonfinite | self._unusable.keys()
        return [end for end in ended if batch.groups[end[0]].number not in aborted] if aborted else ended

    def _finish(self, ended: list[tuple[int, str]]) -> None:
        """Collects finished samples and groups, and frees their rows."""
        batch = self._batch
        finishes = dict(ended)
        for row, finish in finishes.items():
            queued, number = batch.groups[row], int(batch.sample[row])
            queued.samples[number] = batch.to_sample(row, finish)
            self.counts.samples += 1
            if len(queued.samples) == queued.group.n:
                samples = [queued.samples[number] for number in range(queued.group.n)]
                self._finished.append(FinishedGroup(queued.number, queued.group.id, samples))
                self.counts.groups += 1
        self._scheduler.free_rows(set(finishes))
        self._abort_unusable()
        if self._nonfinite:
            self._abort_nonfinite()

    def _abort_unusable(self) -> None:
        """Ends groups whose own sampling parameters fail; other groups go on."""
        unusable, self._unusable = self._unusable, {}
        for reason in set(unusable.values()):
            numbers = {number for number, why in unusable.items() if why == reason}
            self._abort_numbers(reason, numbers)

    def _abort_nonfinite(self) -> None:
        """Ends groups with non-finite log-probabilities, and clears the cache: 0 times nan would spoil the next
        sequences in their slots."""
        nonfinite, self._nonfinite = self._nonfinite, set()
        reason = f"the weights of version {self.version} give log-probabilities that are not finite"
        self._abort_numbers(reason, nonfinite)
        self.cache.reset()
        self._scheduler.drop_chunks()
        self._recompute(np.arange(self._batch.count))

    def _abort_numbers(self, reason: str, numbers: set[int]) -> None:
        self.abort(reason, lambda queued: queued.number in numbers)

    def _recompute(self, rows: NDArray[np.int64]) -> None:
        """Keys and values of sequences that have tokens, after a preemption or for new weights."""
        batch = self._batch
        if not len(rows):
            return
        used_columns = int(batch.cached[: batch.count].max())
        self.runner.reserve(batch.count, self._scheduler.budget.width, batch.count, used_columns)
        self.runner.recompute([batch.cached_tokens(row) for row in rows], rows)
        self.counts.recomputed += len(rows)

    def _answer_limit(self, group: GroupRequest) -> int:
        """Most tokens of one answer. If the cache is too small for them, the group is refused."""
        length, most, key = len(group.prompt), self.cache.limit, self.keys.cache_tokens_key
        limit = max_answer_tokens(group.sampling, length, self.context_length, self.keys.length_key)
        if length + limit > most:
            raise BadRequest(
                f"{key}: a prompt of {length} tokens and an answer of up to {limit} do not fit into {most}; lower "
                f"gconfig.max_new_tokens or raise {key}"
            )
        return limit

    def _stop_tokens(self, group: GroupRequest) -> tuple[int, ...]:
        """Tokens that end an answer."""
        tokens = tuple(sorted({*group.sampling.stop_token_ids, *self.eos_token_ids}))
        if group.sampling.min_new_tokens and len(tokens) >= self.vocab_size:
            raise BadRequest(
                f"gconfig.stop_token_ids: every token is a stop token, but gconfig.min_new_tokens="
                f"{group.sampling.min_new_tokens} requires others"
            )
        return tokens


def _eos_tokens(model: PreTrainedModel) -> list[int]:
    """Of generation_config.json if it names them, else of config.json."""
    for source in (model.generation_config, model.config.get_text_config()):
        token = getattr(source, "eos_token_id", None)
        if token is not None:
            return [token] if isinstance(token, int) else list(token)
    return []
