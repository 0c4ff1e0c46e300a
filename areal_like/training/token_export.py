"""Token export: every sequence of a step as a JSON line, with the values of sampler, trainer and loss per token.

`token_exports/step_000001/rank_0.jsonl` in the run directory, one file per rank; `STABLE` is written when all files of
a step are complete. Arrays are as long as the tokens; null where nothing was computed, and for values that are not
finite.
"""

from collections.abc import Mapping
from dataclasses import replace
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
from areal_like.process.ownership import Ownership
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
"""Values computed by a step, where available."""
Arrays = dict[str, NDArray[Any]]


class NoTokenExport:
    """Of a run without `enable_token_export`."""

    def add(self, micro: MicroBatch, values: Mapping[str, Tensor | None]) -> None:
        pass

    def add_policy(self, micro: MicroBatch, inputs: Inputs, ratio: RatioConfig) -> None:
        pass

    def write_batch(self, batch: TrainingBatch) -> None:
        pass

    def write_rows(self, completed: int, sequences: Sequences) -> None:
        pass


NO_EXPORT = NoTokenExport()


class TokenExport:
    """Of one rank. `add` in the forward passes of a step, `write` at its end."""

    def __init__(self, run: Run, world: World) -> None:
        self._root, self._world, self._run_id = run.directory / FOLDER, world, run.run_id
        self._ownership = Ownership.of_process(run)
        task = getattr(run.config, "task", None)
        self._env = getattr(task, "name", None) or ""
        self._passes: list[tuple[MicroBatch, dict[str, Tensor]]] = []

    def add(self, micro: MicroBatch, values: Mapping[str, Tensor | None]) -> None:
        """Values at the predictions of a micro-batch, by names in COMPUTED. They stay on the device until written."""
        given = {name: value.detach() for name, value in values.items() if value is not None}
        self._passes.append((micro, given))

    def add_policy(self, micro: MicroBatch, inputs: Inputs, ratio: RatioConfig) -> None:
        """Values of a micro-batch of reinforcement learning."""
        self.add(micro, policy_arrays(micro, inputs, ratio))

    def write_batch(self, batch: TrainingBatch) -> None:
        """Of a step of reinforcement learning. All ranks must call it."""
        sequences, sample_indices = batch.sequences, batch.mine_N
        known = {
            "advantages": sequences.fields[ADVANTAGES],
            "rewards": np.repeat(batch.rewards_A[sample_indices], sequences.lengths_N),
            "inference_logprobs": sequences.fields[SAMPLER],
        }
        names_A = [""] * batch.num_samples if batch.agents is None else batch.agents.names_A
        sample_fields = [
            {
                "group": int(batch.prompts_A[sample]),
                **({"agent": names_A[sample]} if names_A[sample] else {}),
                **{"sample": sample, "truncated": bool(batch.truncated_A[sample])},
            }
            for sample in sample_indices.tolist()
        ]
        rows_N = np.flatnonzero(sequences.loss_tokens_N)
        self._write(batch.step + 1, "rl", sequences, rows_N, known, sample_fields)

    def write_rows(self, completed: int, sequences: Sequences) -> None:
        """Of a step of supervised training: the sequences of the batch that this rank computed. All ranks must call
        it."""
        rows_N = np.sort(np.concatenate([np.zeros(0, np.int64), *(micro.rows_N for micro, _ in self._passes)]))
        self._write(completed, "sft", sequences, rows_N, {}, [{} for _ in range(len(sequences))])

    def _write(
        self,
        step: int,
        mode: str,
        sequences: Sequences,
        rows_N: NDArray[np.int64],
        known: Arrays,
        sample_fields: list[dict[str, Any]],
    ) -> None:
        arrays = {name: np.where(sequences.target_mask, values, np.nan) for name, values in known.items()}
        missing = np.full(len(sequences.token_ids), np.nan)
        for name in ("advantages", "rewards", "inference_logprobs"):
            arrays.setdefault(name, missing)
        arrays |= {name: self._scattered(name, sequences) for name in COMPUTED}
        places = {
            int(row): (index, position)
            for index, (micro, _) in enumerate(self._passes)
            for position, row in enumerate(micro.rows_N)
        }
        folder = self._root / folder_name(step)
        self._ownership.require()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"rank_{self._world.rank}.jsonl"
        half = path.with_name(f".{path.name}.{self._run_id}.half")
        with half.open("wb") as file:
            for index, row in enumerate(rows_N.tolist()):
                start, length = int(sequences.starts_N[row]), int(sequences.lengths_N[row])
                part = slice(start, start + length)
                micro_step, position = places.get(row, (None, None))
                line = {
                    "schema_version": SCHEMA_VERSION,
                    "step": step,
                    "export_step": step,
                    "rank": self._world.rank,
                    "micro_step": micro_step,
                    "micro_sequence_idx": position,
                    "export_sequence_idx": index,
                    "run_id": self._run_id,
                    "env_name": self._env,
                    "training_mode": mode,
                    **sample_fields[row],
                    "token_ids": sequences.token_ids[part],
                    "position_ids": np.arange(length),
                    "loss_mask": sequences.target_mask[part],
                    **{name: _json_values(name, values[part]) for name, values in arrays.items()},
                }
                file.write(orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
        self._passes.clear()
        try:
            self._ownership.require()  # again: a process may be stopped in the middle of a long file
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)
        self._world.barrier()
        if self._world.is_first:
            self._ownership.require()
            (folder / COMPLETE_MARK).touch()

    def _scattered(self, name: str, sequences: Sequences) -> NDArray[np.float32]:
        """Scattered to an array over all tokens."""
        values = np.full(len(sequences.token_ids), np.nan, dtype=np.float32)
        for micro, computed in self._passes:
            if name in computed:
                values[micro.tokens_P] = computed[name].float().cpu().numpy()
        return values


def policy_arrays(micro: MicroBatch, inputs: Inputs, ratio: RatioConfig) -> dict[str, Tensor | None]:
    """The mismatch of trainer and sampler per token, and which tokens `actor.ratio` masks."""
    logprobs, sampler, counts = inputs.logprobs.detach(), micro.fields[SAMPLER], inputs.loss_mask
    gap = logprobs - sampler
    clamped = gap.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    importance_ratio = ratio_of(
        logprobs - inputs.old_logprobs, counts, inputs.cu_seqlens, ratio.level, ratio.length_norm
    )

    def is_masked(limits: RatioConfig) -> Tensor:
        return ~within_limits(importance_ratio, counts, inputs.cu_seqlens, limits)

    return {
        "trainer_logprobs": logprobs,
        "entropy": inputs.entropy,
        "mismatch_kl": torch.expm1(clamped) - clamped,
        "log_importance_ratio": gap,
        "importance_ratio": importance_ratio,
        "prob_delta": logprobs.exp() - sampler.exp(),
        "is_masked": is_masked(ratio),
        "is_masked_high": is_masked(replace(ratio, mask_low=None, sequence_mask_low=0.0)),
        "is_masked_low": is_masked(replace(ratio, mask_high=None, sequence_mask_low=0.0)),
    }


def _json_values(name: str, values: NDArray[Any]) -> Any:
    """Numbers as float32, whose JSON is short; masks as booleans."""
    if name.startswith("is_"):
        return [None if np.isnan(value) else bool(value) for value in values]
    return values.astype(np.float32)
