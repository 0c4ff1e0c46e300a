"""The plan of a run as data: a dry run prints it, the launcher executes it.

`<port>`, and `<secret>` for the run's token, are placeholders for values that exist only when a process is started.
Processes hold the secrets of the configuration; what is shown does not. Records are named tuples, whose classes are
created in a tenth of the time of dataclasses.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from areal_like.config.problems import ConfigError, Problem
from areal_like.config.redact import Redactor
from areal_like.process.identity import PORT as PORT

VERSION = 1


class ReplacedValue(NamedTuple):
    """A value that a stronger layer replaced."""

    value: Any
    where: str


class ChangedSetting(NamedTuple):
    """A key whose value differs from its default; `beaten`: the values it replaced, strongest first."""

    key: str
    value: Any
    where: str
    default: Any = None
    beaten: tuple[ReplacedValue, ...] = ()


class BaseSetting(NamedTuple):
    """A key set by the command line (`typed`), by the name of a dataset or the keys of an example (`known`) or
    by the body of the file, and the `base` value that it replaces."""

    key: str
    value: Any
    where: str
    typed: bool
    base: Any = None
    known: bool = False


class UnreadFileValue(NamedTuple):
    """A value in the body of the user's file that this run does not read, because of the command line or the engine."""

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
    """The value of an `auto` on this machine, and the reason."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True)
class Process:
    """One process: where it runs, its command, and its variables in addition to the launcher's environment."""

    role: str
    index: int
    node: int
    gpus: tuple[int, ...]
    cores: tuple[int, ...]
    threads: int
    command: tuple[str, ...] = field(repr=False)
    env: dict[str, str] = field(repr=False)
    """Not in the repr, like the command: both may hold secrets."""
    log: str
    """Empty where there is none: guardian and launcher write to the terminal."""

    @property
    def name(self) -> str:
        return f"{self.role}/{self.index}"

    def redacted(self, redactor: Redactor) -> "Process":
        """The process without secrets."""
        command = tuple(redactor.command(list(self.command)))
        return replace(self, command=command, env=redactor.environment(self.env))


class Port(NamedTuple):
    """A listening port. `policy`: "bound" (port 0, published), "leased" (reserved under a lock) or "fixed"."""

    process: str
    purpose: str
    host: str
    policy: str
    port: int | None
    reason: str


class BatchPlan(NamedTuple):
    """Sizes of a training step. None: not limited, or not known before the data are read."""

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
    """gathered weights, gradients that are being summed, logits"""
    host: int = 0
    """bytes of weights, gradients and optimizer that are offloaded to host memory"""
    activations_per_token: int = 0
    """bytes per token of a micro-batch, in addition"""
    checkpoint: int = 0
    """bytes of host memory on the first rank while a checkpoint is written; with GPUs kept from the first one on"""
    rounding: int = 0
    """bytes of host memory beside `host`: page-locked memory is allocated in powers of two"""
    host_activations: int = 0
    """bytes of host memory for the activations of a micro-batch, where they are moved there"""

    @property
    def total(self) -> int:
        """Bytes on the computing device, before activations."""
        return self.weights + self.gradients + self.optimizer + self.working - self.host


class ServerMemory(NamedTuple):
    """Bytes of one GPU (or process) of a server."""

    model: str
    path: str
    weights: int
    """one set of them"""
    kv_bytes_per_token: int
    kv_bytes_longest_sample: int | None
    weight_sets: int = 1
    """2 where the next version is held beside the one in use"""


class Memory(NamedTuple):
    """Memory as estimated before anything is loaded; `unknown`: why some of it cannot be."""

    trainer: tuple[ModelMemory, ...]
    trainer_rank_bytes: int | None
    server: ServerMemory | None
    unknown: tuple[str, ...]
    words: tuple[str, ...]


class RunDirectory(NamedTuple):
    """Where the run writes. `state`: "new", "continues", "replaced", "missing" or "exists" (which is refused)."""

    path: str
    trial: str
    state: str
    reason: str
    step: int | None = None
    """step of the checkpoint from which it resumes"""
    attempt: int = 1
    """number of this start of the run"""


class Plan(NamedTuple):
    """Everything known about a run before it starts."""

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
    """The machine of the plan: whether it is this one, and its resources."""
    warnings: tuple[str, ...]
    cannot_start: tuple[Problem, ...]
    """Problems of the configuration, and features that are not built: a start exits with 2."""
    needs: tuple[Problem, ...]
    """Missing resources (GPUs, files, a free run directory): a start exits with 2."""

    redactor: Redactor
    """Knows the secrets of the processes."""
    short_warnings: dict[str, str]
    """Warning -> its text where there is no room for the whole."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Everything for which a start would be refused, in the order of the error message."""
        return ConfigError((*self.cannot_start, *self.needs)).problems

    def shown(self) -> "Plan":
        """The plan without the secrets of its processes."""
        return self._replace(processes=tuple(process.redacted(self.redactor) for process in self.processes))

    def to_json(self) -> dict[str, Any]:
        """Plain data in the order of the fields, without secrets."""
        hidden = ("redactor", "short_warnings")
        return {name: _plain(value) for name, value in self.shown()._asdict().items() if name not in hidden}


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, Problem):
        return {"key": value.key, "reason": value.message, "where": value.where}
    if isinstance(value, Process):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if hasattr(value, "_asdict"):
        return {name: _plain(item) for name, item in value._asdict().items()}
    return [_plain(item) for item in value]
