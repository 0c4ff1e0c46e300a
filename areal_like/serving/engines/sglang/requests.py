"""Converts requests to SGLang's format and its responses to ours."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from areal_like.serving.engines.base import EngineInfo, GenerateOutput, GenerateRequest
from areal_like.serving.requests import Sampling, max_answer_tokens, parse_sampling

MAX_STOP_TEXTS = 32
MAX_REPETITION_PENALTY = 2.0
MIN_TEMPERATURE = 1e-6
"""SGLang silently takes the likeliest token below it."""
FINISHES = {"stop": "stop", "length": "length", "abort": "abort"}


class Capabilities(NamedTuple):
    """What a server's flags allow. `by_seed`: it follows the seeds of requests (SGLang's deterministic inference)."""

    has_tokenizer: bool
    by_seed: bool


def unsupported_sampling(sampling: Sampling, capabilities: Capabilities) -> list[tuple[str, str]]:
    """Keys of `gconfig` that SGLang would not follow exactly, with the reason."""
    problems = []
    if not capabilities.has_tokenizer:
        for key in ("stop", "min_new_tokens"):
            if getattr(sampling, key):
                problems.append((key, "SGLang needs its tokenizer for it; set sglang.skip_tokenizer_init=false"))
    if sampling.stop and sampling.min_new_tokens:
        problems.append(("stop", "SGLang ends an answer at a text even before min_new_tokens; set only one of the two"))
    if len(sampling.stop) > MAX_STOP_TEXTS:
        problems.append(("stop", f"SGLang supports at most {MAX_STOP_TEXTS} texts; there are {len(sampling.stop)}"))
    if sampling.repetition_penalty > MAX_REPETITION_PENALTY:
        problems.append(("repetition_penalty", f"SGLang supports at most {MAX_REPETITION_PENALTY:g}; lower it"))
    if 0 < sampling.temperature < MIN_TEMPERATURE:
        problems.append(("temperature", f"SGLang supports 0 (the likeliest token), or at least {MIN_TEMPERATURE}"))
    if capabilities.by_seed and sampling.min_p > 0:
        problems.append(
            ("min_p", "SGLang crashes with it when it samples by seeds; remove gconfig.seed or gconfig.min_p")
        )
    return problems


def request_body(
    request: GenerateRequest, names: Sequence[str], info: EngineInfo, capabilities: Capabilities
) -> dict[str, Any]:
    """For `/generate`: each of the n samples is a separate request with its own name and seed. Raises ValueError for
    what SGLang does differently."""
    sampling = parse_sampling(request.sampling, info.vocab_size)
    for key, reason in unsupported_sampling(sampling, capabilities):
        raise ValueError(f"gconfig.{key}: {reason}")
    max_tokens = max_answer_tokens(sampling, len(request.prompt), info.context_length, "sglang.context_length")
    parameters = _parameters(sampling, max_tokens, info)
    body = {
        "rid": list(names),
        "input_ids": [list(request.prompt)] * request.n,
        "sampling_params": [
            parameters | {"sampling_seed": (request.seed + number) % 2**63} for number in range(request.n)
        ],
        "return_logprob": True,
        "return_sampling_mask": is_truncated(sampling),
        "priority": request.priority,
    }
    return body if request.adapter is None else body | {"lora_path": [request.adapter] * request.n}


def is_truncated(sampling: Sampling) -> bool:
    """Whether unlikely tokens are excluded. SGLang then reports log-probabilities over the remaining tokens."""
    return not sampling.is_greedy and (sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0)


def _parameters(sampling: Sampling, max_tokens: int, info: EngineInfo) -> dict[str, Any]:
    """Temperature 0 takes the likeliest token, and gives log-probabilities at temperature 1."""
    parameters: dict[str, Any] = {
        "temperature": 0.0 if sampling.is_greedy else sampling.temperature,
        "max_new_tokens": max_tokens,
        "min_new_tokens": min(sampling.min_new_tokens, max_tokens),
        "stop_token_ids": [*info.eos_token_ids, *sampling.stop_token_ids],
        "stop": list(sampling.stop),
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "skip_special_tokens": False,
    }
    if is_truncated(sampling):
        # Without a limit SGLang does not report the remaining tokens; a limit of all tokens excludes none.
        top_k = sampling.top_k or info.vocab_size
        parameters |= {"top_k": top_k, "top_p": sampling.top_p, "min_p": sampling.min_p}
    return parameters


def parse_output(response: Mapping[str, Any], truncated: bool) -> GenerateOutput:
    """Without versions: no request stays in SGLang during an update, so that its version is known."""
    info = response["meta_info"]
    finish = FINISHES[info["finish_reason"]["type"]]
    token_ids = list(response.get("output_ids") or ())
    if truncated:
        logprobs = list(info.get("output_token_sampling_logprobs") or ())
    else:
        logprobs = [entry[0] for entry in info.get("output_token_logprobs") or ()]
    if finish == "abort" and len(logprobs) < len(token_ids):
        token_ids = token_ids[: len(logprobs)]
    return GenerateOutput(token_ids, logprobs, finish)


def prompt_logprobs(response: Mapping[str, Any]) -> list[float]:
    """Log-probabilities of all tokens but the first."""
    return [float(entry[0]) for entry in response["meta_info"]["input_token_logprobs"][1:]]
