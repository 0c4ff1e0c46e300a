"""One answer as it grows: what the engine gave of it so far, and how the rest is asked for. No IO."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from areal_like.process.seeds import derive_seed
from areal_like.serving.external.base import GenerateOutput, GenerateRequest
from areal_like.serving.requests import GroupRequest

ABORT, STOP, LENGTH = "abort", "stop", "length"


class BadOutput(Exception):
    """The engine's answer is not one to what was asked."""


@dataclass
class ParsedGroup:
    """A group as the engine is asked for it. `limit`: most tokens of one answer; `stops`: tokens that end it."""

    group: GroupRequest
    sampling: Mapping[str, Any]
    limit: int
    stops: frozenset[int]

    @property
    def depends_on_output(self) -> bool:
        """Whether what comes next depends on the answer so far in a way that an engine does not see in a prompt. Such
        an answer begins again when it was interrupted."""
        how = self.group.sampling
        return bool(how.frequency_penalty != 0 or how.repetition_penalty != 1 or how.stop)

    def first(self, name: str, adapter: str | None) -> GenerateRequest:
        """All samples together."""
        group = self.group
        sampling = {**self.sampling, "max_new_tokens": self.limit}
        if group.sampling.min_new_tokens > self.limit:
            sampling["min_new_tokens"] = self.limit
        return GenerateRequest(name, group.prompt, group.n, group.seed, sampling, adapter, group.priority)


@dataclass
class PartialSample:
    """Sample number `number` of a group. Tokens that were had are kept: `rest` asks for those after them."""

    parsed: ParsedGroup
    number: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: str = ABORT

    def add(self, output: GenerateOutput, version: int, override_versions: bool = False) -> None:
        """`version`: of the weights that were in use, where the engine does not say it, or where `knows_better`."""
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
                f"the engine gave {len(output.token_ids)} tokens where at most {self.parsed.limit - have} were wanted"
            )
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.versions += versions
        self.finish = output.finish
        if output.finish == ABORT:
            self._see_whether_done(have)

    def continuation(self, name: str, adapter: str | None) -> GenerateRequest:
        """What is still to be generated of it."""
        if self.parsed.depends_on_output:
            self.token_ids, self.logprobs, self.versions = [], [], []
        group, have = self.parsed.group, len(self.token_ids)
        sampling = {**self.parsed.sampling, "max_new_tokens": self.parsed.limit - have}
        if least := min(group.sampling.min_new_tokens, self.parsed.limit):
            sampling["min_new_tokens"] = max(0, least - have)
        seed = derive_seed(group.seed, "continued", self.number, have)
        return GenerateRequest(name, [*group.prompt, *self.token_ids], 1, seed, sampling, adapter, group.priority)

    def said(self) -> dict[str, Any]:
        return {
            "token_ids": self.token_ids,
            "logprobs": self.logprobs,
            "versions": self.versions,
            "finish": self.finish,
        }

    def _see_whether_done(self, since: int) -> None:
        """It may have been interrupted just when it ended, and before the engine saw that."""
        least = max(since, self.parsed.group.sampling.min_new_tokens)
        end = next((at for at in range(least, len(self.token_ids)) if self.token_ids[at] in self.parsed.stops), None)
        if end is not None:
            del self.token_ids[end + 1 :], self.logprobs[end + 1 :], self.versions[end + 1 :]
            self.finish = STOP
        elif len(self.token_ids) == self.parsed.limit:
            self.finish = LENGTH
