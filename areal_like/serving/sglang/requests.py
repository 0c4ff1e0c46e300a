"""A request in SGLang's words, and its answer in ours."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from areal_like.serving.external.base import EngineInfo, GenerateOutput, GenerateRequest
from areal_like.serving.requests import Sampling, max_answer_tokens, parse_sampling

MAX_STOP_TEXTS = 32
MAX_REPETITION_PENALTY = 2.0
MIN_TEMPERATURE = 1e-6
"""Below it SGLang takes the likeliest token, without a word."""
FINISHES = {"stop": "stop", "length": "length", "abort": "abort"}


class Capabilities(NamedTuple):
    """How a server was started, as far as it changes what can be asked of it. `by_seed`: whether it samples by the
    seeds of requests (SGLang calls that deterministic inference)."""

    has_tokenizer: bool
    by_seed: bool


def unsupported_sampling(sampling: Sampling, able: Capabilities) -> list[tuple[str, str]]:
    """What SGLang cannot do, or would do otherwise than asked: keys of `gconfig`, and why."""
    found = []
    if not able.has_tokenizer:
        for key in ("stop", "min_new_tokens"):
            if getattr(sampling, key):
                found.append((key, "SGLang needs its tokenizer for it; set sglang.skip_tokenizer_init=false"))
    if sampling.stop and sampling.min_new_tokens:
        found.append(("stop", "SGLang ends an answer at a text even before min_new_tokens; set only one of the two"))
    if len(sampling.stop) > MAX_STOP_TEXTS:
        found.append(("stop", f"SGLang takes at most {MAX_STOP_TEXTS} texts, and these are {len(sampling.stop)}"))
    if sampling.repetition_penalty > MAX_REPETITION_PENALTY:
        found.append(("repetition_penalty", f"SGLang takes at most {MAX_REPETITION_PENALTY:g}; lower it"))
    if 0 < sampling.temperature < MIN_TEMPERATURE:
        found.append(("temperature", f"SGLang takes 0 (the likeliest token), or {MIN_TEMPERATURE} and more"))
    if able.by_seed and sampling.min_p > 0:
        found.append(("min_p", "SGLang dies of it where it samples by seeds; leave out gconfig.seed or gconfig.min_p"))
    return found


def request_body(
    request: GenerateRequest, names: Sequence[str], info: EngineInfo, able: Capabilities
) -> dict[str, Any]:
    """For `/generate`: each of the n samples is a request of its own, under its name and with its own seed. Raises
    ValueError with what SGLang would do differently."""
    sampling = parse_sampling(request.sampling, info.vocab_size)
    for key, reason in unsupported_sampling(sampling, able):
        raise ValueError(f"gconfig.{key}: {reason}")
    longest = max_answer_tokens(sampling, len(request.prompt), info.context_length, "sglang.context_length")
    how = _parameters(sampling, longest, info)
    body = {
        "rid": list(names),
        "input_ids": [list(request.prompt)] * request.n,
        "sampling_params": [how | {"sampling_seed": (request.seed + number) % 2**63} for number in range(request.n)],
        "return_logprob": True,
        "return_sampling_mask": is_truncated(sampling),
        "priority": request.priority,
    }
    return body if request.adapter is None else body | {"lora_path": [request.adapter] * request.n}


def is_truncated(sampling: Sampling) -> bool:
    """Whether unlikely tokens are left out. SGLang then says the log-probabilities among those that are left."""
    return not sampling.is_greedy and (sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0)


def _parameters(sampling: Sampling, longest: int, info: EngineInfo) -> dict[str, Any]:
    """Temperature 0 takes the likeliest token, and gives log-probabilities at temperature 1."""
    found: dict[str, Any] = {
        "temperature": 0.0 if sampling.is_greedy else sampling.temperature,
        "max_new_tokens": longest,
        "min_new_tokens": min(sampling.min_new_tokens, longest),
        "stop_token_ids": [*info.eos_token_ids, *sampling.stop_token_ids],
        "stop": list(sampling.stop),
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "skip_special_tokens": False,
    }
    if is_truncated(sampling):
        # A limit of all tokens leaves none out; without a limit SGLang does not say what was left.
        top_k = sampling.top_k or info.vocab_size
        found |= {"top_k": top_k, "top_p": sampling.top_p, "min_p": sampling.min_p}
    return found


def parse_output(said: Mapping[str, Any], cut: bool) -> GenerateOutput:
    """SGLang could tell the versions of tokens, but keeps no request while they change: who asks knows them."""
    info = said["meta_info"]
    finish = FINISHES[info["finish_reason"]["type"]]
    token_ids = list(said.get("output_ids") or ())
    if cut:
        logprobs = list(info.get("output_token_sampling_logprobs") or ())
    else:
        logprobs = [entry[0] for entry in info.get("output_token_logprobs") or ()]
    if finish == "abort" and len(logprobs) < len(token_ids):
        token_ids = token_ids[: len(logprobs)]
    return GenerateOutput(token_ids, logprobs, finish)


def prompt_logprobs(said: Mapping[str, Any]) -> list[float]:
    """Of each token after the first."""
    return [float(entry[0]) for entry in said["meta_info"]["input_token_logprobs"][1:]]
