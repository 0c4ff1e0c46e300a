"""Every sequence of a step as a line of JSON: its tokens, and beside each what sampler, trainer and loss made of it.

`token_exports/step_000001/rank_0.jsonl` in the run directory, a file for each rank; `STABLE` is there when all of a
step's are whole. Arrays of a line are as long as its tokens; null stands where nothing was computed, and for what is
not finite.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_like.algorithms.losses import LOG_RATIO_LIMIT, Inputs
from areal_like.algorithms.losses.ratio import ratio_of, within_limits
from areal_like.config.sections.actor import RatioConfig
from areal_like.process.checkpoint_files import folder_name
from areal_like.process.run import Run
from areal_like.training.batch import ADVANTAGES, SAMPLER, TrainingBatch
from areal_like.training.sequences import MicroBatch, Sequences
from areal_like.training.world import World

FOLDER, COMPLETE_MARK = "token_exports", "STABLE"
SCHEMA_VERSION = 1
COMPUTED = (
    *("trainer_logprobs", "entropy", "mismatch_kl", "log_importance_ratio", "importance_ratio", "prob_delta"),
    *("is_masked", "is_masked_high", "is_masked_low"),
)
"""What a step finds out of its tokens, as far as it is computed."""
Arrays = dict[str, NDArray[Any]]


class TokenExport:
    """Of one rank. `add` in the forward passes of a step, `write` at its end."""

    def __init__(self, run: Run, world: World) -> None:
        self._root, self._world, self._run_id = run.directory / FOLDER, world, run.run_id
        task = getattr(run.config, "task", None)
        self._env = getattr(task, "name", None) or ""
        self._passes: list[tuple[MicroBatch, dict[str, NDArray[np.float32]]]] = []

    def add(self, micro: MicroBatch, found: Mapping[str, Tensor | None]) -> None:
        """Of the predictions of a micro-batch, by the names of COMPUTED."""
        kept = {name: value.detach().float().cpu().numpy() for name, value in found.items() if value is not None}
        self._passes.append((micro, kept))

    def write_batch(self, batch: TrainingBatch) -> None:
        """Of a step of reinforcement learning. All ranks must call it."""
        sequences, mine = batch.sequences, batch.mine_N
        known = {
            "advantages": sequences.fields[ADVANTAGES],
            "rewards": np.repeat(batch.rewards_A[mine], sequences.lengths_N),
            "inference_logprobs": sequences.fields[SAMPLER],
        }
        said = [
            {"group": int(batch.groups_A[sample]), "sample": int(sample), "truncated": bool(batch.truncated_A[sample])}
            for sample in mine
        ]
        rows_N = np.flatnonzero(sequences.loss_tokens_N)
        self._write(batch.step + 1, "rl", sequences, rows_N, known, said)

    def write_rows(self, completed: int, sequences: Sequences) -> None:
        """Of a step of supervised training: of its batch what this rank computed. All ranks must call it."""
        rows_N = np.sort(np.concatenate([np.zeros(0, np.int64), *(micro.rows_N for micro, _ in self._passes)]))
        self._write(completed, "sft", sequences, rows_N, {}, [{} for _ in range(len(sequences))])

    def _write(
        self,
        step: int,
        mode: str,
        sequences: Sequences,
        rows_N: NDArray[np.int64],
        known: Arrays,
        said: list[dict[str, Any]],
    ) -> None:
        arrays = {name: np.where(sequences.target_mask, values, np.nan) for name, values in known.items()}
        nothing = np.full(len(sequences.token_ids), np.nan)
        for name in ("advantages", "rewards", "inference_logprobs"):
            arrays.setdefault(name, nothing)
        arrays |= {name: self._gathered(name, sequences) for name in COMPUTED}
        places = {
            int(row): (number, place)
            for number, (micro, _) in enumerate(self._passes)
            for place, row in enumerate(micro.rows_N)
        }
        folder = self._root / folder_name(step)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"rank_{self._world.rank}.jsonl").open("wb") as file:
            for number, row in enumerate(rows_N.tolist()):
                start, length = int(sequences.starts_N[row]), int(sequences.lengths_N[row])
                part = slice(start, start + length)
                micro_step, place = places.get(row, (None, None))
                line = {
                    "schema_version": SCHEMA_VERSION,
                    "step": step,
                    "export_step": step,
                    "rank": self._world.rank,
                    "micro_step": micro_step,
                    "micro_sequence_idx": place,
                    "export_sequence_idx": number,
                    "run_id": self._run_id,
                    "env_name": self._env,
                    "training_mode": mode,
                    **said[row],
                    "token_ids": sequences.token_ids[part],
                    "position_ids": np.arange(length),
                    "loss_mask": sequences.target_mask[part],
                    **{name: _json_values(name, values[part]) for name, values in arrays.items()},
                }
                file.write(orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
        self._passes.clear()
        self._world.barrier()
        if self._world.is_first:
            (folder / COMPLETE_MARK).touch()

    def _gathered(self, name: str, sequences: Sequences) -> NDArray[np.float32]:
        """Back at their places among all tokens."""
        values = np.full(len(sequences.token_ids), np.nan, dtype=np.float32)
        for micro, found in self._passes:
            if name in found:
                values[micro.tokens_P] = found[name]
        return values


def policy_arrays(micro: MicroBatch, inputs: Inputs, ratio: RatioConfig) -> dict[str, Tensor | None]:
    """How far trainer and sampler are apart at each token, and which tokens `actor.ratio` leaves out for it."""
    logprobs, sampler, counts = inputs.logprobs.detach(), micro.fields[SAMPLER], inputs.loss_mask
    gap = logprobs - sampler
    near = gap.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    moved = ratio_of(logprobs - inputs.old_logprobs, counts, inputs.cu_seqlens, ratio.level, ratio.length_norm)

    def left_out(high: float | None, low: float | None, sequence_low: float = 0.0) -> Tensor:
        return ~within_limits(moved, counts, inputs.cu_seqlens, high, low, sequence_low)

    return {
        "trainer_logprobs": logprobs,
        "entropy": inputs.entropy,
        "mismatch_kl": torch.expm1(near) - near,
        "log_importance_ratio": gap,
        "importance_ratio": moved,
        "prob_delta": logprobs.exp() - sampler.exp(),
        "is_masked": left_out(ratio.mask_high, ratio.mask_low, ratio.sequence_mask_low),
        "is_masked_high": left_out(ratio.mask_high, None),
        "is_masked_low": left_out(None, ratio.mask_low),
    }


def _json_values(name: str, values: NDArray[Any]) -> Any:
    """Numbers in the shortest way that says them; truth values as such."""
    if name.startswith("is_"):
        return [None if np.isnan(value) else bool(value) for value in values]
    return values.astype(np.float32)
