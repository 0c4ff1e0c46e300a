"""The next token of each row of a batch, as its group asks for it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from areal_like.serving.embedded.core.draw import sample_tokens
from areal_like.serving.embedded.core.logit_processors import SamplingTensors, process_logits
from areal_like.serving.embedded.core.noise import uniform_noise
from areal_like.serving.embedded.core.output_tracker import record_top_logprobs
from areal_like.serving.embedded.core.running_batch import NO_TOKEN, RunningBatch

NO_DISTRIBUTION = "sampling: this request's penalties and temperature leave no distribution to sample from; change them"
ToDevice = Callable[[NDArray[Any]], torch.Tensor]


def next_tokens(
    rows: RunningBatch, of_row: NDArray[np.int64], logits_RV: torch.Tensor, tensor: ToDevice
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.bool_]]:
    """Tokens, their log-probabilities, and which of these are no finite number although the model's are: by what the
    request asks for. Rows that ask for no more than a temperature are left as they are."""
    noise = uniform_noise(rows.seed[of_row], rows.sample[of_row], rows.generated[of_row].astype(np.uint64))
    is_fit = np.zeros(len(of_row), np.bool_)
    if rows.is_shaped[of_row].any():
        is_fit = (logits_RV.amax(1).isfinite() & logits_RV.amin(1).isfinite()).cpu().numpy()
        logits_RV = process_logits(logits_RV, _shape_of(rows, of_row, tensor))
    temperature_R = tensor(rows.temperature[of_row])
    tokens, logprobs = sample_tokens(logits_RV, temperature_R, tensor(rows.greedy[of_row]), tensor(noise))
    record_top_logprobs(logits_RV, temperature_R, rows.followed_of(of_row))
    found = logprobs.cpu().numpy()
    return tokens.cpu().numpy(), found, is_fit & ~np.isfinite(found)


def _shape_of(rows: RunningBatch, of_row: NDArray[np.int64], tensor: ToDevice) -> SamplingTensors:
    places = np.flatnonzero(rows.is_shaped[of_row])
    shaped = of_row[places]
    asked, length = rows.asked[shaped], rows.generated[shaped]
    blocked = np.where(rows.is_early(shaped)[:, None], rows.stops[shaped], NO_TOKEN)
    return SamplingTensors(
        places_P=tensor(places),
        temperature_P=tensor(rows.temperature[shaped]),
        top_k_P=tensor(asked["top_k"].copy()),
        top_p_P=tensor(asked["top_p"].copy()),
        min_p_P=tensor(asked["min_p"].copy()),
        frequency_P=tensor(asked["frequency"].copy()),
        repetition_P=tensor(asked["repetition"].copy()),
        prompt_PS=tensor(rows.seen[shaped]),
        answer_PA=tensor(rows.token_ids[shaped, : max(1, int(length.max()))]),
        length_P=tensor(length),
        blocked_PB=tensor(blocked),
    )
