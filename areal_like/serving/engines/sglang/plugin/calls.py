"""How our code in SGLang's schedulers is called: SGLang's routes take no calls of a plugin, so these have the form of a
call that reaches every scheduler."""

import json
from typing import Any

ROUTE = "/init_weights_update_group"
BACKEND = "areal_like"
"""In place of torch's `nccl` or `gloo`."""


def call_body(method: str, argument: str = "") -> dict[str, Any]:
    body: dict[str, Any] = {"backend": BACKEND, "group_name": method, "master_address": argument}
    return body | {"master_port": 0, "rank_offset": 0, "world_size": 0}


def call_results(message: str) -> list[dict[str, Any]]:
    """By rank. SGLang repeats the message for each data-parallel part of the attention."""
    results: list[dict[str, Any]] = json.JSONDecoder().raw_decode(message)[0]
    return results


def staged_group(version: int) -> str:
    """Stands for a group from which SGLang receives what was staged."""
    return f"{BACKEND} v{version}"
