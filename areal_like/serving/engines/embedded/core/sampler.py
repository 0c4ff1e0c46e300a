"""Sampler: the next token of each row of a batch, and its random noise. R rows, V tokens of vocabulary."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from areal_like.serving.engines.embedded.core.logit_processors import (
    MAX_PROCESSED_AT_ONCE,
    SamplingTensors,
    UsedProcessors,
    process_logits,
)
from areal_like.serving.engines.embedded.core.running_batch import NO_TOKEN, RunningBatch, record_top_logprobs
from areal_like.serving.engines.embedded.memory import MAX_LOGITS_AT_ONCE

NO_DISTRIBUTION = "sampling: this request's penalties and temperature leave no distribution to sample from; change them"

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
ONE = np.uint64(1)

ToDevice = Callable[[NDArray[Any]], torch.Tensor]


def next_tokens(
    batch: RunningBatch, rows: NDArray[np.int64], logits_RV: torch.Tensor, to_device: ToDevice
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.bool_]]:
    """Tokens, their log-probabilities, and which of these are not finite because of the request's own parameters: the
    model's logits were. The logits of rows with a temperature only are not changed."""
    on_host = sampled(batch, rows, logits_RV, to_device).cpu().numpy()
    tokens, logprobs = on_host[0].astype(np.int64), on_host[1].astype(np.float32)
    if len(on_host) == 2:
        return tokens, logprobs, np.zeros(len(rows), np.bool_)
    return tokens, logprobs, (on_host[2] > 0) & ~np.isfinite(logprobs)


def sampled(batch: RunningBatch, rows: NDArray[np.int64], logits_RV: torch.Tensor, to_device: ToDevice) -> torch.Tensor:
    """Tokens, log-probabilities, and for a batch with processed rows whether the model's logits are finite: in one
    tensor, so that a step copies to the host once. Its type holds them exactly."""
    noise = uniform_noise(batch.seed[rows], batch.sample[rows], batch.generated[rows].astype(np.uint64))
    is_finite_R: list[torch.Tensor] = []
    if batch.is_processed[rows].any():
        is_finite_R = [logits_RV.amax(1).isfinite() & logits_RV.amin(1).isfinite()]
        logits_RV = process_logits(logits_RV, _sampling_parts(batch, rows, logits_RV.shape[1], to_device))
    temperature_R = to_device(batch.temperature[rows])
    tokens_R, logprobs_R = sample_tokens(logits_RV, temperature_R, to_device(batch.greedy[rows]), to_device(noise))
    record_top_logprobs(logits_RV, temperature_R, batch.trackers_of(rows))
    return torch.stack([each.double() for each in (tokens_R, logprobs_R, *is_finite_R)])


def sample_tokens(
    logits_RV: torch.Tensor, temperature_R: torch.Tensor, greedy_R: torch.Tensor, uniform_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token for each row, and its log-probability under the distribution it was sampled from. Greedy rows take the
    most likely token; their temperature should be 1, so that the log-probability is the model's."""
    num = max(1, MAX_LOGITS_AT_ONCE // logits_RV.shape[1])
    parts = [
        _sample_part(
            logits_RV[at : at + num], temperature_R[at : at + num], greedy_R[at : at + num], uniform_R[at : at + num]
        )
        for at in range(0, len(logits_RV), num)
    ]
    if len(parts) == 1:
        return parts[0]
    return torch.cat([tokens for tokens, _ in parts]), torch.cat([logprobs for _, logprobs in parts])


def uniform_noise(
    seeds: NDArray[np.uint64], samples: NDArray[np.uint64], positions: NDArray[np.uint64]
) -> NDArray[np.float64]:
    """One number between 0 and 1 (exclusive) for each row, by two rounds of splitmix64 over seed of the request, number
    of the sample and position alone: rows, batches and preemptions do not change it."""
    with np.errstate(over="ignore"):
        state = _splitmix64(seeds + GOLDEN * (samples + ONE))
        state = _splitmix64(state + GOLDEN * (positions + ONE))
    return ((state >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _sample_part(
    logits_RV: torch.Tensor, temperature_R: torch.Tensor, greedy_R: torch.Tensor, uniform_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    logprobs_RV = torch.log_softmax(logits_RV.float() / temperature_R[:, None], dim=-1)
    sums_RV = logprobs_RV.double().exp_().cumsum_(dim=-1)
    # The first token whose sum exceeds the threshold: a token of probability 0 adds nothing, so it is never taken.
    threshold_R1 = (uniform_R * sums_RV[:, -1])[:, None]
    sampled_R = torch.searchsorted(sums_RV, threshold_R1, right=True)[:, 0].clamp_(max=logits_RV.shape[1] - 1)
    tokens_R = torch.where(greedy_R, logprobs_RV.argmax(dim=-1), sampled_R)
    return tokens_R, logprobs_RV.gather(1, tokens_R[:, None])[:, 0]


def _splitmix64(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * FIRST
    state = (state ^ (state >> np.uint64(27))) * SECOND
    return state ^ (state >> np.uint64(31))


def _sampling_parts(
    batch: RunningBatch, rows: NDArray[np.int64], vocab_size: int, to_device: ToDevice
) -> Iterator[SamplingTensors]:
    places, num = np.flatnonzero(batch.is_processed[rows]), max(1, MAX_PROCESSED_AT_ONCE // vocab_size)
    for begin in range(0, len(places), num):
        yield _sampling_tensors(batch, rows, places[begin : begin + num], to_device)


def _sampling_tensors(
    batch: RunningBatch, rows: NDArray[np.int64], places: NDArray[np.int64], to_device: ToDevice
) -> SamplingTensors:
    processed = rows[places]
    sampling, length = batch.sampling[processed], batch.generated[processed]
    forbidden = np.where(batch.must_continue(processed)[:, None], batch.stop_tokens[processed], NO_TOKEN)
    at = np.nonzero(forbidden >= 0)
    return SamplingTensors(
        places_P=to_device(places),
        temperature_P=to_device(batch.temperature[processed]),
        top_k_P=to_device(sampling["top_k"].copy()),
        top_p_P=to_device(sampling["top_p"].copy()),
        min_p_P=to_device(sampling["min_p"].copy()),
        frequency_P=to_device(sampling["frequency"].copy()),
        repetition_P=to_device(sampling["repetition"].copy()),
        prompt_PS=to_device(batch.prompt_tokens[processed]),
        answer_PA=to_device(batch.token_ids[processed, : max(1, int(length.max()))]),
        length_P=to_device(length),
        forbidden_2F=to_device(np.stack([at[0], forbidden[at]])),
        used=UsedProcessors(
            repetition=bool((sampling["repetition"] != 1).any()),
            frequency=bool((sampling["frequency"] != 0).any()),
            max_top_k=int(sampling["top_k"].max()),
            top_p=bool((sampling["top_p"] < 1).any()),
            min_p=bool((sampling["min_p"] > 0).any()),
        ),
    )
