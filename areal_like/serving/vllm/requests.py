"""A request in vLLM's words, and its answer in ours."""

import math
from collections.abc import Mapping
from typing import Any

from areal_like.serving.external.base import EngineInfo, GenerateOutput, GenerateRequest
from areal_like.serving.external.partial_sample import BadOutput
from areal_like.serving.requests import max_answer_tokens, parse_sampling

MIN_TEMPERATURE = 0.01
"""Below it vLLM would raise the temperature to this, without a word."""
NO_VERSION = -1
NOT_A_NUMBER = -9999.0
"""What vLLM makes of a log-probability that is none, or of a token that cannot be: no sampled one is so unlikely."""


def is_greedy(request: GenerateRequest) -> bool:
    """Its answers are all alike, and vLLM computes them one by one: one of them will do."""
    sampling = request.sampling
    return bool(sampling.get("greedy")) or sampling.get("temperature") == 0


def request_body(request: GenerateRequest, info: EngineInfo) -> dict[str, Any]:
    """For `/inference/v1/generate`. Where an answer ends is said in full, as vLLM would ask the tokenizer, and a
    trainer asks the model's configuration. Raises ValueError with what vLLM would do differently."""
    sampling = parse_sampling(request.sampling, info.vocab_size)
    if 0 < sampling.temperature < MIN_TEMPERATURE and not sampling.is_greedy:
        raise ValueError(
            f"gconfig.temperature: {sampling.temperature:g} is less than vLLM can do; take 0 (the likeliest token), or "
            f"{MIN_TEMPERATURE} and more"
        )
    longest = max_answer_tokens(sampling, len(request.prompt), info.context_length, "vllm.max_model_len")
    said = {
        "n": 1 if sampling.is_greedy else request.n,
        "seed": request.seed % 2**63,
        "temperature": 0.0 if sampling.is_greedy else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "max_tokens": longest,
        "min_tokens": min(sampling.min_new_tokens, longest),
        "ignore_eos": True,
        "stop_token_ids": [*info.eos_token_ids, *sampling.stop_token_ids],
        "stop": list(sampling.stop),
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "detokenize": bool(sampling.stop),
        "logprobs": 0,
    }
    body: dict[str, Any] = {"request_id": request.id, "token_ids": list(request.prompt), "sampling_params": said}
    if request.adapter is not None:
        body["model"] = request.adapter
    return body | {"priority": request.priority}


def parse_output(choice: Mapping[str, Any], is_adapter: bool, is_told: bool = False) -> GenerateOutput:
    """vLLM's label of versions is that of the model without adapters. `is_told`: it was given a version before this was
    asked for, so every token has one. Raises Unreadable where it has none: it would count as not generated."""
    token_ids = choice["token_ids"] or []
    content = (choice["logprobs"] or {}).get("content") or []
    logprobs = [math.nan if entry["logprob"] == NOT_A_NUMBER else entry["logprob"] for entry in content]
    versions = None if is_adapter else _versions(choice["weight_versions"] or [], len(token_ids))
    if is_told and versions is not None and NO_VERSION in versions:
        raise BadOutput(
            f"vLLM does not say of {versions.count(NO_VERSION)} of {len(versions)} tokens by which version of the "
            "weights they were generated"
        )
    return GenerateOutput(token_ids, logprobs, choice["finish_reason"], versions)


def _versions(spans: list[dict[str, Any]], num_tokens: int) -> list[int]:
    versions = [NO_VERSION] * num_tokens
    for span in spans:
        if span["version"].isdecimal():
            versions[span["start"] : span["end"]] = [int(span["version"])] * (span["end"] - span["start"])
    return versions


def prompt_logprobs(said: list[dict[str, Any] | None], token_ids: list[int]) -> list[float]:
    """Of each token after the first."""
    found = []
    for token, entries in zip(token_ids[1:], said[1:], strict=True):
        assert entries is not None, "vLLM gives them for all tokens but the first"
        found.append(float(entries[str(token)]["logprob"]))
    return found


def logprob_of(token: int, said: Mapping[str, Any]) -> float:
    """Of a token that was asked for in the first place of an answer."""
    (first,) = said["choices"][0]["logprobs"]["content"]
    found = [entry["logprob"] for entry in first["top_logprobs"] if entry["token_id"] == token]
    if not found:
        raise BadOutput(f"vLLM does not say how likely token {token} was, though it was asked for it")
    return math.nan if found[0] == NOT_A_NUMBER else float(found[0])
