"""A run as its processes see it: the folder, and what the launcher wrote into it before it started them."""

import ipaddress
import json
import socket
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from areal_like.process.checkpoint_files import attempt_of
from areal_like.process.run_links import CHECKPOINTS, EVALUATIONS, RESUME_STATES, TRACKERS, link_target
from areal_like.process.run_memory import memory_folder

CONFIG, RUN_FACTS, ATTEMPT, COMMAND = "config.yaml", "run.json", "attempt.json", "command.txt"
LEDGER = "ledger.jsonl"
"""In the folder of rollouts."""
LOOPBACK = "127.0.0.1"


class StartPoint(NamedTuple):
    """Where an attempt begins: after so many completed steps, and from which checkpoint (None: from nothing). `began`
    is the attempt with which the command of the user began; later ones are recoveries within it."""

    attempt: int
    step: int
    checkpoint: Path | None
    began: int = 1


@dataclass(frozen=True)
class Run:
    """`config` has every `auto` replaced by what was decided; `folder` is that of the user's file, `cwd` where the
    command was given: what a file names is looked for there."""

    directory: Path
    config: Any
    experiment: str
    run_id: str
    folder: Path
    cwd: Path
    serves: bool = False
    """Whether servers are all there is of it: they are there for other runs, and take the weights of any."""

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    @property
    def metrics(self) -> Path:
        return self.directory / "metrics"

    @property
    def rollouts(self) -> Path:
        return self.directory / "rollouts"

    @property
    def weights(self) -> Path:
        return self.directory / "weights"

    @property
    def checkpoints(self) -> Path:
        return self.directory / CHECKPOINTS

    @property
    def resume_states(self) -> Path | None:
        """Where what is needed to go on is kept; None: within the checkpoints."""
        return link_target(self.directory, RESUME_STATES)

    @property
    def trackers(self) -> Path:
        """Folder above the files of trackers."""
        return link_target(self.directory, TRACKERS) or self.directory

    @property
    def evaluations(self) -> Path | None:
        """Where the scores of evaluations are written once more; None: nowhere."""
        return link_target(self.directory, EVALUATIONS)

    @cached_property
    def memory(self) -> Path:
        """The run's folder in shared memory, which the guardian makes and removes."""
        return memory_folder(self.run_id)

    @property
    def is_synchronous(self) -> bool:
        """Whether every batch comes from the newest weights alone."""
        return not self.config.async_training or self.config.rollout.max_head_offpolicyness == 0

    @property
    def host(self) -> str:
        """Where its servers listen: on loopback unless it spans nodes."""
        return listen_address(self.config)

    @property
    def opens_generation(self) -> bool:
        """Whether its servers generate for those without its token: never in a run that trains."""
        return self.serves and opens_generation(self.config)

    def start_point(self) -> StartPoint:
        said = json.loads((self.directory / ATTEMPT).read_text(encoding="utf-8"))
        checkpoint = said["checkpoint"]
        began = said.get("began", said["attempt"])
        return StartPoint(said["attempt"], said["step"], None if checkpoint is None else Path(checkpoint), began)

    def skips(self, what: str) -> bool:
        """Whether this attempt leaves out what `recover.skip_<what>` names. One that goes on from a checkpoint of the
        same command does not: there it was left out already."""
        start = self.start_point()
        if start.checkpoint is None or not getattr(self.config.recover, f"skip_{what}"):
            return False
        return attempt_of(start.checkpoint) < start.began


def listen_address(config: Any) -> str:
    """Address of its servers."""
    if config.rollout.host:
        return str(config.rollout.host)
    return LOOPBACK if config.cluster.n_nodes == 1 else socket.gethostbyname(socket.gethostname())


def opens_generation(config: Any) -> bool:
    """Whether servers of `serve` generate for those without a key."""
    if config.rollout.open_generation == "loopback":
        return _is_loopback(listen_address(config))
    return bool(config.rollout.open_generation == "always")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_run(directory: str | Path) -> Run:
    """Reads what the launcher wrote; needs neither Hydra nor torch."""
    import yaml

    from areal_like.config.experiment import EXPERIMENTS
    from areal_like.config.loaded import build_config

    root = Path(directory)
    facts = json.loads((root / RUN_FACTS).read_text(encoding="utf-8"))
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    values = yaml.load((root / CONFIG).read_text(encoding="utf-8"), loader)
    return Run(
        directory=root,
        config=build_config(EXPERIMENTS[facts["experiment"]], values),
        experiment=facts["experiment"],
        run_id=facts["run_id"],
        folder=Path(facts["folder"]),
        cwd=Path(facts["cwd"]),
        serves=bool(facts.get("serves", False)),
    )
