"""Runs leases: calls the workflow on the row, checks and packs its trajectories, and classifies its errors."""

import asyncio
import copy
import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from areal_like.config.environments import place_of
from areal_like.data.checked_rows import InvalidRow
from areal_like.data.datasets import Datasets
from areal_like.data.row_table import hash_text
from areal_like.data.tokenizer import KEY, TextTokenizer
from areal_like.data.user_code import describe_error
from areal_like.process.errors import FinalFailure, InfrastructureError, ends_task
from areal_like.process.plain_json import plain_text
from areal_like.process.scrubbed_output import known_secrets, without_secrets
from areal_like.rollout.conversation_facts import numbered
from areal_like.rollout.episodes.agents.base import AgentError
from areal_like.rollout.episodes.episode import Episode, WorkerTools
from areal_like.rollout.episodes.generation_client import GenerationError, LeaseCancelled, LeaseRoute, Superseded
from areal_like.rollout.episodes.rewards.base import RewardError
from areal_like.rollout.episodes.sample import RowError
from areal_like.rollout.episodes.text_environments.process import EnvironmentFault
from areal_like.rollout.episodes.trajectory_check import find_problem
from areal_like.rollout.episodes.workflows import Workflow, workflow_of
from areal_like.rollout.sampling import EFFORT
from areal_like.rollout.trajectory import Trajectory, pack_group

DONE, REJECTED, FAILED = "done", "rejected", "failed"
MAX_LOGGED_ERRORS = 100
"""At most this many different errors are logged, each once."""

ERROR_KINDS: dict[type[BaseException], str] = {
    RewardError: "reward",
    GenerationError: "server",
    RowError: "row",
    InvalidRow: "row",
    EnvironmentFault: "environment",
    InfrastructureError: "infrastructure",
    AgentError: "workflow",
}
"""Exception that a workflow raises -> kind of failure, the first that it is; any other is the workflow's own."""

log = logging.getLogger(__name__)


class EpisodeResult(NamedTuple):
    """`header` is sent to the controller; `blob` has the arrays of a group that is done."""

    header: dict[str, Any]
    blob: bytes | None = None


class OwnSettings(NamedTuple):
    """What an environment has of its own."""

    workflow: Workflow | None = None
    sampling: Mapping[str, Any] = MappingProxyType({})
    evaluated_sampling: Mapping[str, Any] = MappingProxyType({})
    """Of its held-out rows: without what the evaluations set."""


NONE_OWN = OwnSettings()
KEPT_TEXTS = ("messages", "text")
"""Facts that files get. An agent's messages may quote what its tools were given."""


@dataclass(frozen=True)
class EpisodeRunner:
    """Runs the leases of a worker."""

    tools: WorkerTools
    datasets: Datasets
    workflow: Workflow
    check_format: bool
    environments: Mapping[str, OwnSettings] = field(default_factory=dict)
    """Those of benchmarks too, by their place."""
    logged_errors: set[str] = field(default_factory=set)
    tokenizers: dict[str, TextTokenizer] = field(default_factory=dict)
    """By reasoning effort."""
    secrets: tuple[str, ...] = field(default_factory=known_secrets)
    keeps_order: bool = True
    """Whether the groups of a synchronous step start together: not where one may wait for the end of another."""

    async def inspect(self, rows: Mapping[str, Sequence[int]]) -> dict[str, list[Any]]:
        """The rows of each dataset as [row, hash, whether it is too long]. Leases run on in between."""
        inspected: dict[str, list[Any]] = {}
        for split, numbers in rows.items():
            dataset = self.datasets.of(split)
            for number in numbers:
                (row,) = dataset.inspect([number])
                inspected.setdefault(split, []).append([row.row, hash_text(row.hash), row.is_too_long])
                await asyncio.sleep(0)
        return inspected

    async def run(self, lease: dict[str, Any]) -> EpisodeResult:
        rows = self.datasets.of(lease["split"])
        name = rows.environment(lease["row"])
        own = self.environments.get(place_of(lease["split"], name), NONE_OWN)
        if not self.keeps_order:
            lease = {**lease, "order": None}
        sampling = own.evaluated_sampling if lease["purpose"] == "eval" else own.sampling
        lease = {**lease, "sampling": {**lease["sampling"], **sampling}}
        tools, lease = self._with_effort(lease)
        episode = Episode(tools, lease, name)
        episode.trace("starts: row %d of %s", lease["row"], lease["split"])
        header: dict[str, Any] = {"lease": lease["id"]}
        blob: bytes | None = None
        try:
            row = copy.deepcopy(rows.row(lease["row"], int(lease["row_hash"], 16)))
            returned = await (own.workflow or workflow_of(row, self.workflow)).run(episode, row)
            _name_environment(returned, name)
            if returned is None:
                header["status"] = REJECTED
            else:
                header["facts"], blob = self._pack(returned, episode)
                header["status"] = DONE
                if episode.is_evaluation:
                    header["texts"] = without_secrets(self._texts(returned), self.secrets)
        except (Superseded, LeaseCancelled, FinalFailure):
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as fault:
            if ends_task(fault):
                raise
            self.tools.rewards.counts.infrastructure += isinstance(fault, InfrastructureError)
            error = plain_text(self._message(fault, lease))  # a user's message may quote what a model wrote
            header |= {"status": FAILED, "error_kind": _kind(fault), "error": error}
            self._log_once(fault, header)
        if episode.has_place_left:
            await _leave_place(episode)
        header["timings"] = episode.timings
        episode.trace("ends: %s", header["status"])
        return EpisodeResult(header, blob)

    def _with_effort(self, lease: dict[str, Any]) -> tuple[WorkerTools, dict[str, Any]]:
        """The tools and the lease of an evaluation whose reasoning effort the chat template reads."""
        tokenizer, sampling = self.tools.tokenizer, lease["sampling"]
        if EFFORT not in sampling or not tokenizer.renders_chats:
            return self.tools, lease
        effort = sampling[EFFORT]
        if effort not in self.tokenizers:
            self.tokenizers[effort] = tokenizer.with_template_args({EFFORT: effort})
        rest = {name: value for name, value in sampling.items() if name != EFFORT}
        return replace(self.tools, tokenizer=self.tokenizers[effort]), {**lease, "sampling": rest}

    def _pack(self, returned: Any, episode: Episode) -> tuple[list[dict[str, Any]], bytes]:
        if not isinstance(returned, list) or not all(isinstance(each, Trajectory) for each in returned):
            kinds = [type(each).__name__ for each in returned] if isinstance(returned, list) else None
            got = f"a list of {', '.join(sorted(set(kinds)))}" if kinds is not None else type(returned).__name__
            raise FormatError(f"run() returned {got}; return a list of Trajectory, or None to leave the row out")
        trains_observed = not self.tools.conversation_rules.mask_env_responses
        if self.check_format:
            problem = find_problem(returned, self.tools.tokenizer.size, episode.lease["sampling"], trains_observed)
            if problem is not None:
                raise FormatError(f"run() returned {problem}")
        numbers = numbered([each.conversation for each in returned])
        rewarded = {number for number, each in zip(numbers, returned, strict=True) if each.reward is not None}
        num_answers = len(set(numbers))
        failed, may_fail = num_answers - len(rewarded), episode.max_failed(num_answers)
        if failed > may_fail:
            raise RewardError(
                f"{failed} of {num_answers} answers have no reward, and {may_fail} may (reward.max_failed_share)"
            )
        if not episode.is_evaluation and not self.tools.keeps_messages:
            returned = [replace(each, messages=None, text=None) for each in returned]
        try:
            # Of an evaluation `texts` has them.
            facts, blob = pack_group(returned, trains_observed, with_texts=not episode.is_evaluation)
        except ValueError as misfit:
            raise FormatError(f"run() returned what cannot be trained on: {misfit}") from misfit
        for fact in facts:
            fact |= {name: without_secrets(fact[name], self.secrets) for name in KEPT_TEXTS if name in fact}
        return facts, blob

    def _texts(self, trajectories: list[Trajectory]) -> dict[str, Any]:
        """For the answers that an evaluation saves. The prompt is that of the first answer. The samples of a
        conversation are one answer, a line each."""
        decode = self.tools.tokenizer.decode
        prompt = trajectories[0].prompt_ids.tolist()
        answers: dict[int, list[str]] = {}
        for number, each in zip(numbered([each.conversation for each in trajectories]), trajectories, strict=True):
            text = decode(each.token_ids[len(each.prompt_ids) :].tolist()) if each.text is None else each.text
            answers.setdefault(number, []).append(plain_text(text))
        return {
            "prompt": decode(prompt, skip_special=False),
            "answers": ["\n".join(texts) for texts in answers.values()],
        }

    def _message(self, fault: BaseException, lease: dict[str, Any]) -> str:
        text = str(fault) if isinstance(fault, EXPLAINED_ERRORS) else describe_error(fault)
        if not isinstance(fault, RowError) or text.startswith(f"{KEY}: "):
            return text
        split: str = lease["split"]
        return f"{self.datasets.section_of(split)}.path: {self.datasets.of(split).place(lease['row'])}: {text}"

    def _log_once(self, fault: BaseException, header: dict[str, Any]) -> None:
        """Logs each error once, with its traceback if it was raised in the user's code."""
        if header["error"] in self.logged_errors or len(self.logged_errors) >= MAX_LOGGED_ERRORS:
            return
        self.logged_errors.add(header["error"])
        is_explained = isinstance(fault, EXPLAINED_ERRORS)
        trace = "" if is_explained else "\n" + "".join(traceback.format_exception(fault)).rstrip()
        text = header["error"] + plain_text(trace)
        log.warning("lease %s failed (%s; logged once): %s", header["lease"], header["error_kind"], text)


def _name_environment(returned: Any, name: str) -> None:
    """Where a workflow has not."""
    for each in returned if name and isinstance(returned, list) else ():
        if isinstance(each, Trajectory) and not each.env:
            each.env = name


class FormatError(ValueError):
    """A workflow returned no valid trajectories."""


EXPLAINED_ERRORS: tuple[type[BaseException], ...] = (FormatError, *ERROR_KINDS)
"""Errors whose message is enough without a traceback."""


def _kind(fault: BaseException) -> str:
    return next((kind for known, kind in ERROR_KINDS.items() if isinstance(fault, known)), "workflow")


async def _leave_place(episode: Episode) -> None:
    """The groups of its synchronous step do not wait for one that has generated nothing, such as for a row without room
    for an answer."""
    lease = episode.lease
    group = {"id": f"{lease['id']}/none", "prompt": [], "n": 0, "order": lease["order"]}
    try:
        await episode.tools.client.generate(LeaseRoute(lease["id"], lease["server"]), group)
    except GenerationError as refused:
        log.warning("lease %s: its place in the step is not left: %s", lease["id"], refused)
