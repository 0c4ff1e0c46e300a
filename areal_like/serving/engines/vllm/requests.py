"""Converts requests to vLLM's format and its responses to ours."""

import math
from collections.abc import Mapping
from typing import Any

from areal_like.serving.engines.base import EngineInfo, GenerateOutput, GenerateRequest
from areal_like.serving.engines.vllm.command import unsupported_temperature
from areal_like.serving.partial_sample import BadOutput
from areal_like.serving.requests import max_answer_tokens, parse_sampling

NO_VERSION = -1
NOT_A_NUMBER = -9999.0
"""vLLM's log-probability of an impossible token, or instead of a NaN; no sampled token is so unlikely."""


def is_greedy(request: GenerateRequest) -> bool:
    """Its samples are all equal, and vLLM would compute each: one is requested."""
    sampling = request.sampling
    return bool(sampling.get("greedy")) or sampling.get("temperature") == 0


def request_body(request: GenerateRequest, info: EngineInfo) -> dict[str, Any]:
    """For `/inference/v1/generate`, with all end tokens: vLLM would take them from the tokenizer, a trainer takes them
    from the model's configuration. Raises ValueError for what vLLM does differently."""
    sampling = parse_sampling(request.sampling, info.vocab_size)
    if reason := unsupported_temperature(sampling.temperature, sampling.is_greedy):
        raise ValueError(f"gconfig.temperature: {reason}")
    max_tokens = max_answer_tokens(sampling, len(request.prompt), info.context_length, "vllm.max_model_len")
    parameters = {
        "n": 1 if sampling.is_greedy else request.n,
        "seed": request.seed % 2**63,
        "temperature": 0.0 if sampling.is_greedy else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "max_tokens": max_tokens,
        "min_tokens": min(sampling.min_new_tokens, max_tokens),
        "ignore_eos": True,
        "stop_token_ids": [*info.eos_token_ids, *sampling.stop_token_ids],
        "stop": list(sampling.stop),
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "detokenize": bool(sampling.stop),
        "logprobs": 0,
    }
    body: dict[str, Any] = {"request_id": request.id, "token_ids": list(request.prompt), "sampling_params": parameters}
    if request.adapter is not None:
        body["model"] = request.adapter
    return body | {"priority": request.priority}


def parse_output(choice: Mapping[str, Any], is_adapter: bool, has_version: bool = False) -> GenerateOutput:
    """vLLM's versions are those of the base model. `has_version`: vLLM was given a version before the request, so every
    token has one. Raises BadOutput if one has none: it would count as not generated."""
    token_ids = choice["token_ids"] or []
    content = (choice["logprobs"] or {}).get("content") or []
    logprobs = [math.nan if entry["logprob"] == NOT_A_NUMBER else entry["logprob"] for entry in content]
    versions = None if is_adapter else _versions(choice["weight_versions"] or [], len(token_ids))
    if has_version and versions is not None and NO_VERSION in versions:
        raise BadOutput(
            f"vLLM does not report the weight version of {versions.count(NO_VERSION)} of {len(versions)} tokens"
        )
    return GenerateOutput(token_ids, logprobs, choice["finish_reason"], versions)


def _versions(spans: list[dict[str, Any]], num_tokens: int) -> list[int]:
    versions = [NO_VERSION] * num_tokens
    for span in spans:
        if span["version"].isdecimal():
            versions[span["start"] : span["end"]] = [int(span["version"])] * (span["end"] - span["start"])
    return versions


def prompt_logprobs(entries: list[dict[str, Any] | None], token_ids: list[int]) -> list[float]:
    """Log-probabilities of all tokens but the first."""
    logprobs = []
    for token, entry in zip(token_ids[1:], entries[1:], strict=True):
        assert entry is not None, "vLLM reports all tokens but the first"
        logprobs.append(float(entry[str(token)]["logprob"]))
    return logprobs


def logprob_of(token: int, response: Mapping[str, Any]) -> float:
    """The log-probability of a token at the first place of an answer, which the request asked for."""
    (first,) = response["choices"][0]["logprobs"]["content"]
    logprobs = [entry["logprob"] for entry in first["top_logprobs"] if entry["token_id"] == token]
    if not logprobs:
        raise BadOutput(f"vLLM does not report the log-probability of token {token}, which was requested")
    return math.nan if logprobs[0] == NOT_A_NUMBER else float(logprobs[0])
