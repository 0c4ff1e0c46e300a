"""What a run will be, as data: the thing that a dry run prints and that the launcher executes.

Nothing here decides anything. `<port>`, and `<secret>` for the run's token, stand for what exists only when a process
is started; secrets of the configuration are in the processes, and out of what is shown. Records are
named tuples, as a class of these is made in a tenth of the time of a dataclass, and a dry run makes them all.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from areal_like.config.problems import ConfigError, Problem
from areal_like.config.redact import Redactor
from areal_like.process.identity import PORT as PORT

VERSION = 1


class ReplacedValue(NamedTuple):
    """A value that somebody wrote and that something stronger replaced."""

    value: Any
    where: str


class ChangedSetting(NamedTuple):
    """A key whose value differs from its default; `beaten` are the other sayings about it, strongest first."""

    key: str
    value: Any
    where: str
    default: Any = None
    beaten: tuple[ReplacedValue, ...] = ()


class BaseSetting(NamedTuple):
    """A key that the command line (`typed`) or the file's body sets, and the `base` value that it replaces there."""

    key: str
    value: Any
    where: str
    typed: bool
    base: Any = None


class UnreadFileValue(NamedTuple):
    """A value in the body of the user's file that means nothing to the algorithm or engine that was chosen."""

    key: str
    reason: str
    where: str


class ReplacedFileValue(NamedTuple):
    """A value from the body of the user's file that a group chosen on the command line replaced."""

    key: str
    written: Any
    where: str
    value: Any
    by: str


class Resolved(NamedTuple):
    """What an `auto` became on this machine, and why."""

    key: str
    value: Any
    reason: str


class PlanProblem(NamedTuple):
    """Why a real start would be refused. `where` is the place that set the key, as far as one did."""

    key: str
    reason: str
    where: str = ""


@dataclass(frozen=True)
class Process:
    """One process: where it runs, how it is started, and what it is given beyond the launcher's own environment."""

    role: str
    index: int
    node: int
    gpus: tuple[int, ...]
    cores: tuple[int, ...]
    threads: int
    command: tuple[str, ...] = field(repr=False)
    env: dict[str, str] = field(repr=False)
    """Out of the repr, with the command: both may hold secrets."""
    log: str
    """Empty where there is none: what the command itself says goes to its terminal."""

    @property
    def name(self) -> str:
        return f"{self.role}/{self.index}"

    def redacted(self, redactor: Redactor) -> "Process":
        """The same process as it may be shown."""
        command = tuple(redactor.command(list(self.command)))
        return replace(self, command=command, env=redactor.environment(self.env))


class Port(NamedTuple):
    """Something that listens: `policy` is "bound" (port 0, published), "leased" (taken under a lock) or "fixed"."""

    process: str
    purpose: str
    host: str
    policy: str
    port: int | None
    reason: str


class BatchPlan(NamedTuple):
    """The arithmetic of a training step. None means: not limited, or not known before the data are read."""

    prompts_per_step: int
    samples_per_prompt: int
    samples_per_step: int
    optimizer_steps_per_step: int
    samples_per_optimizer_step: float
    data_parallel_ranks: int
    max_tokens_per_micro_batch: int | None
    max_new_tokens: int | None
    max_tokens_per_sample: int | None
    max_tokens_per_step: int | None
    staleness_bound: int | None
    max_prompts_ahead: int | None
    max_concurrent_prompts: int | None
    total_steps: int | None
    words: tuple[str, ...]


class ModelMemory(NamedTuple):
    """Bytes that one trainer rank holds for one model."""

    model: str
    path: str
    parameters: int
    trainable: int
    weights: int
    gradients: int
    optimizer: int
    working: int
    host: int = 0
    """those of weights, gradients and optimizer that wait in host memory"""

    @property
    def total(self) -> int:
        """What is on the device that computes."""
        return self.weights + self.gradients + self.optimizer + self.working - self.host


class ServerMemory(NamedTuple):
    """Bytes of one GPU (or process) of a server."""

    model: str
    path: str
    weights: int
    kv_bytes_per_token: int
    kv_bytes_longest_sample: int | None


class Memory(NamedTuple):
    """What can be said of memory before anything is loaded; `unknown` says why the rest cannot."""

    trainer: tuple[ModelMemory, ...]
    trainer_rank_bytes: int | None
    server: ServerMemory | None
    unknown: tuple[str, ...]
    words: tuple[str, ...]


class RunDirectory(NamedTuple):
    """Where the run writes. `state`: "new", "continues" or "exists" (and is then refused)."""

    path: str
    trial: str
    state: str
    reason: str
    step: int | None = None
    """that of the checkpoint that it goes on from"""
    attempt: int = 1
    """which start of the run this would be"""


class Plan(NamedTuple):
    """Everything that is known of a run before it starts."""

    version: int
    experiment: str
    command: str
    file: str | None
    run_dir: str
    run_directory: RunDirectory
    changed: tuple[ChangedSetting, ...]
    over_base: tuple[BaseSetting, ...]
    beaten_body_values: tuple[ReplacedFileValue, ...]
    unread_body_values: tuple[UnreadFileValue, ...]
    allocation: dict[str, Any]
    auto: tuple[Resolved, ...]
    processes: tuple[Process, ...]
    servers: dict[str, Any]
    ports: tuple[Port, ...]
    batch: BatchPlan
    memory: Memory
    cluster: dict[str, Any]
    machine: dict[str, Any]
    """The one that the plan is for: whether it is this one, and what it has."""
    warnings: tuple[str, ...]
    cannot_start: tuple[PlanProblem, ...]
    """What the configuration asks for and this framework does not do: a real start exits 2."""
    needs: tuple[PlanProblem, ...]
    """What is not there yet (GPUs, files, a free run directory): a real start exits 2."""

    redactor: Redactor
    """Knows the secrets that the processes carry."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All that a real start would be refused for, in the words and the order of that refusal."""
        return ConfigError(Problem(o.key, o.reason, o.where) for o in (*self.cannot_start, *self.needs)).problems

    def shown(self) -> "Plan":
        """The plan as it may be shown: the processes of the plan itself hold the secrets that they are started with."""
        return self._replace(processes=tuple(process.redacted(self.redactor) for process in self.processes))

    def to_json(self) -> dict[str, Any]:
        """Plain data, in the order of the fields; holds no secret."""
        return {name: _plain(value) for name, value in self.shown()._asdict().items() if name != "redactor"}


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, Process):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if hasattr(value, "_asdict"):
        return {name: _plain(item) for name, item in value._asdict().items()}
    return [_plain(item) for item in value]
