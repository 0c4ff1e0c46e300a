"""The parameters of a request to an OpenAI-compatible API, and which of them its model takes."""

import logging
import re
from collections.abc import Mapping
from typing import Any

from areal_like.rollout.sampling import EFFORT

PARAMETERS = {
    "top_p": 1.0,
    "frequency_penalty": 0.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "stop": None,
    EFFORT: None,
}
"""Parameters that are sent only if they change something: not every service knows all of them."""
NOT_OF_THE_CHOICE = ("stop", EFFORT)
"""Those that also change what is greedy."""
LIMIT, LIMIT_OF_REASONING = "max_tokens", "max_completion_tokens"
DRAWN_AT = {"temperature": 1.0, "top_p": 1.0}
"""What a model draws at that refuses these: OpenAI's models that reason do."""
UNSUPPORTED = re.compile(r"unsupported|not support|unrecognized|not permitted|deprecated", re.IGNORECASE)
"""In a refusal of a parameter; one of its value alone, such as a limit that is too high, is an error of the user."""

log = logging.getLogger(__name__)


def parameters(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a request, by the names of the API."""
    sent = {LIMIT_OF_REASONING if sampling.get(EFFORT) else LIMIT: sampling["max_new_tokens"]}
    sent["temperature"] = 0.0 if sampling["greedy"] else sampling["temperature"]
    given = {name: sampling[name] for name, default in PARAMETERS.items() if sampling.get(name, default) != default}
    if sampling["greedy"]:
        given = {name: each for name, each in given.items() if name in NOT_OF_THE_CHOICE}
    return sent | given


class TakenParameters:
    """What the model of an API has refused so far."""

    def __init__(self) -> None:
        self._refused = set[str]()
        self._said = set[tuple[str, float]]()

    def of(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The request without what was refused."""
        sent = {name: value for name, value in body.items() if name not in self._refused}
        if LIMIT in body and LIMIT not in sent:
            sent[LIMIT_OF_REASONING] = body[LIMIT]
        for name, default in DRAWN_AT.items():
            if name in body and name not in sent and body[name] != default:
                self._warn(name, body[name], default)
        return sent

    def learn(self, sent: Mapping[str, Any], refusal: str) -> bool:
        """Whether the text of a refusal names parameters that were sent and can be left out."""
        if UNSUPPORTED.search(refusal) is None:
            return False
        names = [name for name in (LIMIT, *DRAWN_AT) if name in sent and re.search(rf"\b{name}\b", refusal)]
        if LIMIT in names and LIMIT not in self._refused:
            log.info("the API refuses %s and is sent %s", LIMIT, LIMIT_OF_REASONING)
        self._refused.update(names)
        return bool(names)

    def _warn(self, name: str, value: float, default: float) -> None:
        if (name, value) not in self._said:
            self._said.add((name, value))
            log.warning(
                "gconfig.%s: the API refuses %s=%g, and answers are drawn at its own default, %g; "
                "set evaluator.gconfig.%s=%g, so that the configuration says so",
                *(name, name, value, default, name, default),
            )
