"""A sample that grows over interrupted requests: its tokens so far, and the request for the others."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from areal_like.process.seeds import derive_seed
from areal_like.serving.engines.base import GenerateOutput, GenerateRequest
from areal_like.serving.requests import GroupRequest

ABORT, STOP, LENGTH = "abort", "stop", "length"


class BadOutput(Exception):
    """The engine's output does not fit the request."""


@dataclass
class ParsedGroup:
    """A group with the sampling keys that it sets. `limit`: maximum tokens per sample; `stops`: tokens that end one."""

    group: GroupRequest
    sampling: Mapping[str, Any]
    limit: int
    stops: frozenset[int]

    @property
    def depends_on_output(self) -> bool:
        """Whether sampling depends on the output so far, which an engine cannot tell from the prompt. Such a sample
        starts again after an interruption."""
        sampling = self.group.sampling
        return bool(sampling.frequency_penalty != 0 or sampling.repetition_penalty != 1 or sampling.stop)

    def first_request(self, name: str, adapter: str | None) -> GenerateRequest:
        """For all samples."""
        group = self.group
        sampling = {**self.sampling, "max_new_tokens": self.limit}
        if group.sampling.min_new_tokens > self.limit:
            sampling["min_new_tokens"] = self.limit
        return GenerateRequest(name, group.prompt, group.n, group.seed, sampling, adapter, group.priority, group)


@dataclass
class PartialSample:
    """Sample number `number` of a group. Its tokens are kept: `continuation` requests those after them."""

    parsed: ParsedGroup
    number: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: str = ABORT

    def add(self, output: GenerateOutput, version: int, override_versions: bool = False) -> None:
        """`version`: of the weights when the request started; used if the engine reports none, or with
        `override_versions`."""
        versions = output.versions
        if versions is None or override_versions:
            versions = [version] * len(output.token_ids)
        if not len(output.token_ids) == len(output.logprobs) == len(versions):
            raise BadOutput(
                f"the engine gave {len(output.token_ids)} tokens, {len(output.logprobs)} log-probabilities and "
                f"{len(versions)} versions for them"
            )
        if not all(map(math.isfinite, output.logprobs)):
            newest = versions[-1] if versions else version
            raise BadOutput(f"the weights of version {newest} give log-probabilities that are not finite")
        have = len(self.token_ids)
        if have + len(output.token_ids) > self.parsed.limit:
            raise BadOutput(
                f"the engine gave {len(output.token_ids)} tokens; at most {self.parsed.limit - have} were requested"
            )
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.versions += versions
        self.finish = output.finish
        if output.finish == ABORT:
            self._check_finished(have)

    def continuation(self, name: str, adapter: str | None) -> GenerateRequest:
        """The request for the missing tokens."""
        if self.parsed.depends_on_output:
            self.token_ids, self.logprobs, self.versions = [], [], []
        group, have = self.parsed.group, len(self.token_ids)
        sampling = {**self.parsed.sampling, "max_new_tokens": self.parsed.limit - have}
        if least := min(group.sampling.min_new_tokens, self.parsed.limit):
            sampling["min_new_tokens"] = max(0, least - have)
        seed = derive_seed(group.seed, "continued", self.number, have)
        return GenerateRequest(name, [*group.prompt, *self.token_ids], 1, seed, sampling, adapter, group.priority)

    def to_json(self) -> dict[str, Any]:
        return {
            "token_ids": self.token_ids,
            "logprobs": self.logprobs,
            "versions": self.versions,
            "finish": self.finish,
        }

    def _check_finished(self, since: int) -> None:
        """The abort may have come after the last token, and before the engine noticed that it was the last."""

        least = max(since, self.parsed.group.sampling.min_new_tokens)
        end = next((at for at in range(least, len(self.token_ids)) if self.token_ids[at] in self.parsed.stops), None)
        if end is not None:
            del self.token_ids[end + 1 :], self.logprobs[end + 1 :], self.versions[end + 1 :]
            self.finish = STOP
        elif len(self.token_ids) == self.parsed.limit:
            self.finish = LENGTH
