"""The answers that training steps were made of, as JSON lines: `rollouts/step_000020.jsonl`.

A line is one training sample, with its texts, token ids and rewards; the last one of a conversation has its messages,
and each one of an agent those up to its last answer.
Files are written in a thread, while training goes on; a checkpoint waits for those of its steps, so that a resumed run
lacks none.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from areal_like.config.redact import remove_secrets
from areal_like.data.row_table import hash_text
from areal_like.data.tokenizer import TextTokenizer
from areal_like.models import model_folder
from areal_like.observe.shown_samples import ShownSamples
from areal_like.process import atomic_file
from areal_like.process.checkpoint_files import folder_name, step_of
from areal_like.process.errors import Failure
from areal_like.process.ownership import Ownership
from areal_like.process.run import Run
from areal_like.process.scrubbed_output import known_secrets
from areal_like.rollout.batches import RolloutBatch
from areal_like.rollout.conversation_facts import conversation_numbers
from areal_like.rollout.groups import Group
from areal_like.rollout.trajectory import Trajectory, unpack_group

SUFFIX = ".jsonl"


class RolloutFiles:
    """Writes them if `rollout.dump_to_file` is set, and a sample of each step if `log.data` is. Those after
    `start_step`, from where a run continues, are removed."""

    def __init__(self, run: Run, start_step: int, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        rollout, config = run.config.rollout, run.config
        self._folder, self._is_on, self._keep = run.rollouts, rollout.dump_to_file, rollout.dump_steps
        self._model = model_folder(config.tokenizer_path or config.actor.path, run.cwd) if self._is_on else None
        self._tokenizer: TextTokenizer | None = None
        self._shown, self._secrets = ShownSamples(run), known_secrets()
        self._spawn, self._lock = spawn, asyncio.Lock()
        self._ownership = Ownership.of_process(run)
        self._ownership.require()
        for step, path in rollout_files(self._folder).items():
            if step > start_step:
                self._ownership.require()
                path.unlink()

    def add(self, batch: RolloutBatch) -> None:
        """Of a step that is done. An error ends the task that is spawned."""
        if self._is_on or self._shown.is_wanted:
            self._spawn(self._write(batch))

    async def written(self) -> None:
        """Waits for all that was added."""
        await asyncio.sleep(0)  # those tasks begin before
        async with self._lock:
            pass

    async def _write(self, batch: RolloutBatch) -> None:
        async with self._lock:
            try:
                await asyncio.to_thread(self.write, batch)
            except OSError as fault:
                raise Failure(
                    f"cluster.fileroot: {self._folder}: {fault.strerror or fault}; make room there"
                ) from fault

    def write(self, batch: RolloutBatch) -> None:
        step = batch.step + 1
        samples = [(group, unpack_group(group.facts, group.blob)) for group in batch.groups]
        if self._shown.is_wanted:
            conversation = conversation_of_first(samples[0][1])
            first, prompt = conversation[0], conversation[0].prompt_ids.tolist()
            answer = first.token_ids[len(prompt) :].tolist()
            self._shown.write(step, prompt, answer, first.reward, conversation[-1].messages)
        if not self._is_on:
            return
        lines = (orjson.dumps(line) + b"\n" for line in self._lines(step, samples))
        content = b"".join(lines)
        self._ownership.require()
        self._folder.mkdir(parents=True, exist_ok=True)
        atomic_file.write_atomic(self._folder / f"{folder_name(step)}{SUFFIX}", content, self._ownership.require)
        for old, path in rollout_files(self._folder).items():
            if self._keep is not None and old <= step - self._keep:
                self._ownership.require()
                path.unlink()

    def _lines(self, step: int, samples: list[tuple[Group, list[Trajectory]]]) -> Iterator[dict[str, Any]]:
        if self._tokenizer is None:
            assert self._model is not None, "texts are decoded only for files"
            self._tokenizer = TextTokenizer(self._model)
        every = list(chain.from_iterable(trajectories for _, trajectories in samples))
        prompts = self._tokenizer.decode_all([each.prompt_ids.tolist() for each in every], skip_special=False)
        answers = self._tokenizer.decode_all([each.token_ids[len(each.prompt_ids) :].tolist() for each in every])
        texts = zip(prompts, answers, strict=True)
        for group, trajectories in samples:
            for sample, (conversation, each) in enumerate(
                zip(conversation_numbers(group.facts), trajectories, strict=True)
            ):
                prompt, answer = next(texts)
                yield {
                    "step": step,
                    **{"group": group.number, "sample": sample, "conversation": conversation},
                    **({"agent": each.agent} if each.agent else {}),
                    **({"run": each.run} if each.run else {}),
                    **{"row": group.row, "row_hash": hash_text(group.row_hash)},
                    **{"reward": each.reward, "rewards": each.rewards, "finish": each.finish},
                    "weights": [int(each.versions[each.versions >= 0].min()), int(each.versions.max())],
                    "prompt": remove_secrets(prompt, self._secrets),
                    "answer": remove_secrets(answer if each.text is None else each.text, self._secrets),
                    **({} if each.messages is None else {"messages": each.messages}),
                    "token_ids": each.token_ids.tolist(),
                    "generated": _spans(each),
                }


def rollout_files(folder: Path) -> dict[int, Path]:
    """Step -> its file, in order."""
    found = ((step_of(path.name.removesuffix(SUFFIX)), path) for path in folder.glob(f"step_*{SUFFIX}"))
    return dict(sorted((step, path) for step, path in found if step is not None))


def conversation_of_first(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The first sample of a group, with all others of its conversation."""
    first = trajectories[0]
    return [each for each in trajectories if each is first or None is not each.conversation == first.conversation]


def _spans(trajectory: Trajectory) -> list[list[int]]:
    """The parts of the tokens that the model generated, [start, end)."""
    changes = np.diff(np.concatenate([[0], (trajectory.versions >= 0).astype(np.int8), [0]]))
    ends: list[list[int]] = np.stack([np.flatnonzero(changes == 1), np.flatnonzero(changes == -1)], axis=1).tolist()
    return ends
