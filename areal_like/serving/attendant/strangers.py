"""What somebody without the run's token may say to an engine of others: what to generate, and nothing of whose request
it is, where its parts are kept, or when it is its turn."""

from typing import Any

from areal_like.process.errors import Refused

LEAST_URGENT = 1 << 62
"""After all that the run asks for, whose groups are numbered from 0."""
NAMES = frozenset(
    (
        *("rid", "request_id", "session_id", "session_params"),
        *("lora_path", "extra_key", "cache_salt"),
        *("bootstrap_host", "bootstrap_port", "bootstrap_room", "kv_transfer_params", "ec_transfer_params"),
        *("data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank"),
        *("custom_logit_processor", "custom_params", "vllm_xargs", "extra_args"),
    )
)
"""Keys of vLLM's and SGLang's bodies that name a request, a place, another process or a program."""
INNER = "sampling_params"


def allowed(said: Any) -> dict[str, Any]:
    """The rest of a body; raises Refused where it is none."""
    if not isinstance(said, dict):
        raise Refused(400, "the body is an object")
    kept = {key: value for key, value in said.items() if key not in NAMES}
    if isinstance(inner := kept.get(INNER), dict):
        kept[INNER] = {key: value for key, value in inner.items() if key not in NAMES}
    return kept


def in_its_turn(said: Any) -> dict[str, Any]:
    """What is to be generated when the run wants nothing."""
    return allowed(said) | {"priority": LEAST_URGENT}
