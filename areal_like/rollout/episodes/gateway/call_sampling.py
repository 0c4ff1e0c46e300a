"""The sampling of a call: what an agent may set, and what stays as the trainer assumes it."""

import logging
from collections.abc import Mapping
from typing import Any

from areal_like.process.errors import HttpError
from areal_like.serving.client_filter import refuse_tiny
from areal_like.serving.requests import shorten

GCONFIG, REQUEST = "gconfig", "request"
DISTRIBUTION = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "repetition_penalty")
CHOICE = ("temperature", "top_p", "top_k", "min_p")
"""A call that names one of them, and no temperature of 0, does not want the most likely token alone."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "presence_penalty": (None, 0),
    "logit_bias": (None, {}),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (
        *(None, "auto", "none", {"type": "auto"}, {"type": "none"}),
        *({"type": "auto", "disable_parallel_tool_use": value} for value in (False, True)),
    ),
    "thinking": (None, {"type": "disabled"}),
    "min_tokens": (None, 0),
    "ignore_eos": (None, False),
    "bad_words": (None, []),
    "allowed_token_ids": (None,),
    **dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"), (None,)),
    **{"reasoning": (None, {}), "reasoning_effort": (None,), "verbosity": (None,)},
    "best_of": (None, 1),
}
"""What would change the distribution in a way that no sampling parameter of a run has."""
NOT_FOLLOWED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "parallel_tool_calls": ((None, True), "the model may call several tools at once"),
    "chat_template_kwargs": ((None, {}), "the template gets chat_template_args"),
}
"""No reason to refuse a call: neutral values, and what holds instead."""
LENGTHS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
MAX_STOPS = 16
ASSUMED = "the trainer assumes the sampling of gconfig; agent.sampling=request"

log = logging.getLogger(__name__)


def _asks_chance(body: Mapping[str, Any]) -> bool:
    return body.get("temperature") != 0 and any(body.get(key) is not None for key in CHOICE)


class CallSampling:
    """`base` is the sampling of the lease. `mode` `gconfig` keeps its distribution whatever a request says, and logs
    each such key once; `request` takes the request's, which training may refuse."""

    def __init__(self, base: Mapping[str, Any], mode: str, warned: set[str]) -> None:
        self._base, self._mode, self._warned = base, mode, warned

    def read(self, body: Mapping[str, Any], max_tokens: int | None = None) -> dict[str, Any]:
        """`max_tokens`: where the body has none. Numbers are in range already."""
        sampling: dict[str, Any] = {}
        for key in DISTRIBUTION:
            value = body.get(key)
            if value is None or value == self._base.get(key):
                continue
            if self._mode == REQUEST:
                sampling[key] = value
            else:
                self._warn(key, value, f"{ASSUMED} obeys them")
        if self._mode == REQUEST and self._base.get("greedy") and _asks_chance(body):
            sampling["greedy"] = False
        refuse_tiny(sampling)
        for key, neutral in NEUTRAL.items():
            if body.get(key) in neutral:
                continue
            if self._mode == REQUEST:
                raise HttpError(400, f"{key}: {shorten(body[key])} is not supported; leave it out")
            self._warn(key, body[key], f"{ASSUMED} refuses such calls")
        for key, (neutral, instead) in NOT_FOLLOWED.items():
            if body.get(key) not in neutral:
                self._warn(key, body[key], instead)
        length = next((key for key in LENGTHS if body.get(key) is not None), None)
        most = max_tokens if length is None else body[length]
        if most is not None:
            if most < 1:
                raise HttpError(400, f"{length}: an answer has at least one token")
            sampling["max_new_tokens"] = min(most, self._base["max_new_tokens"])
        if stops := body.get("stop"):
            more = [stops] if isinstance(stops, str) else stops
            sampling["stop"] = list(dict.fromkeys([*(self._base.get("stop") or ()), *more]))
            if "" in more or len(sampling["stop"]) > MAX_STOPS:
                raise HttpError(400, f"stop: give at most {MAX_STOPS} texts, none of them empty")
        if tokens := body.get("stop_token_ids"):
            sampling["stop_token_ids"] = list(dict.fromkeys([*(self._base.get("stop_token_ids") or ()), *tokens]))
        return sampling

    def _warn(self, key: str, value: Any, why: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            log.warning("agents ask for %s=%s, which is ignored: %s (logged once)", key, shorten(value), why)
