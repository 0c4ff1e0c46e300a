"""What a run of each kind needs around it, and the words of its command."""

import ctypes
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from areal_like.config.experiment import GRPOConfig
from areal_like.config.schema import Schema
from areal_like.serving.engines.external.installations import find_installation
from tests.chaos.cases import CLOCK, DISK, HANG, Case, steps_of
from tests.support.agent_programs import PROGRAM
from tests.support.engine_environments import distribution
from tests.support.etcd_server import EtcdServer, etcd_servers
from tests.support.running_totals import TOTALS
from tests.support.tcp_proxy import Proxy

CLOCK_SOURCE = Path(__file__).with_name("shifted_clock.c")
"""libfaketime would not do: with its clock Python's `time.sleep` fails."""
DISK_BYTES = 96 << 20
CLONE_NEWNS = 0x20000
HURTING = Path(__file__).with_name("hurting_schema.py")
SHORT = (
    *("train_dataset.batch_size=4", "n_samples=2", "recover.freq_steps=3", "evaluator.freq_steps=null"),
    "rollout.setup_timeout=600",
)
"""The last: on a busy machine a start takes minutes."""
WATCHDOG_S, LOADING_S = 10, 60
LOADING = ("watchdog.loading_s", "watchdog.compiling_s")
AGENT = f"""
{PROGRAM}
complete(complete(row["prompt"])["text"] + row["prompt"])
"""
PLAYED = """
defaults: [{algorithm: dr_grpo}, {actor: tiny}, {rollout: embedded}, {tracker: none}, _self_]
experiment_name: played
environments:
  train:
    - {id: "totals.py:Totals", workflow: {name: text_environment, args: {max_processes: 2}}}
train_dataset: {max_length: 60}
valid_dataset: null
gconfig: {max_new_tokens: 6, temperature: 0.5}
rollout: {max_head_offpolicyness: 2}
recover: {mode: auto}
"""


class NotHere(Exception):
    """This machine cannot run a case."""


@dataclass
class Surroundings:
    folder: Path
    config: str = "grpo.yaml"
    words: list[str] = field(default_factory=list)
    schema: list[str] = field(default_factory=list)
    """Repeated with `resume=`."""
    environment: dict[str, str] = field(default_factory=dict)
    etcd: EtcdServer | None = None
    proxy: Proxy | None = None

    @property
    def clock(self) -> Path:
        return self.folder / "clock"

    @property
    def engine(self) -> Path:
        return self.folder / "engine"


@contextmanager
def surroundings(case: Case, folder: Path) -> Iterator[Surroundings]:
    around = Surroundings(folder)
    around.words += [*SHORT, f"total_train_steps={steps_of(case.kind)}", f"seed={case.number + 1}"]
    (folder / "tmp").mkdir()
    around.environment["TMPDIR"] = str(folder / "tmp")
    with ExitStack() as stack:
        if case.kind == "etcd":
            (around.etcd,) = stack.enter_context(etcd_servers(folder / "etcd"))
            around.proxy = stack.enter_context(Proxy(around.etcd.address))
            around.words += ["rollout.backend=embedded:d2", "actor.backend=fsdp:d2"]
            around.words += ["cluster.name_resolve.type=etcd3", "cluster.name_resolve.ttl_s=3"]
            around.words += [f"cluster.name_resolve.etcd3_addr={around.proxy.address}"]
        elif case.kind == "agent":
            (folder / "program.py").write_text(AGENT)
            around.words += ["workflow.name=agent", "agent.command=[python, program.py]", "train_dataset.batch_size=2"]
        elif case.kind == "environment":
            (folder / "played.yaml").write_text(PLAYED)
            (folder / "totals.py").write_text(TOTALS)
            around.config = "played.yaml"
        elif case.kind == "own engine":
            around.engine.write_text("")
            around.environment["CHAOS_ENGINE"] = str(around.engine)
            around.schema = ["--schema", f"{HURTING}:PlainGRPOConfig"]
            around.words += ["rollout.backend=plain", "rollout.request_retries=20"]
        elif case.kind == "vllm":
            around.words += ["rollout=vllm", f"vllm.python={vllm_python()}"]
        if case.action == HANG:
            around.words += watchdog()
        elif case.action == CLOCK:
            around.environment |= shifted_clock(around.clock)
        elif case.action == DISK:
            stack.enter_context(small_disk(folder / "runs"))
        yield around


def vllm_python() -> str:
    try:
        return find_installation(distribution("vllm"), None, Path.cwd()).python
    except ValueError as missing:
        raise NotHere(str(missing)) from missing


def watchdog() -> list[str]:
    """Short limits of the watchdog."""
    limits = [name for name in Schema.of(GRPOConfig).keys if name.startswith("watchdog.") and name.endswith("_s")]
    return [f"{name}={LOADING_S if name in LOADING else WATCHDOG_S}" for name in limits]


def shifted_clock(file: Path) -> dict[str, str]:
    """Variables of processes whose time of day is shifted by the seconds in the file."""
    if (compiler := shutil.which("cc")) is None:
        raise NotHere("there is no C compiler for the clock (Debian: gcc)")
    set_clock(file, 0)
    library = file.with_suffix(".so")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, CLOCK_SOURCE, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(file)}


def set_clock(file: Path, shift_s: int) -> None:
    """In place, as processes have the file mapped."""
    with file.open("r+b" if file.exists() else "wb") as clock:
        clock.write(struct.pack("q", shift_s))


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A disk of its own, which this process and its children alone see, so that nothing is left of it."""
    folder.mkdir()
    if os.geteuid() or ctypes.CDLL(None).unshare(CLONE_NEWNS):
        raise NotHere("a small disk can be mounted by root alone")
    commands = [["--make-rprivate", "/"], ["-t", "tmpfs", "-o", f"size={DISK_BYTES}", "chaos", str(folder)]]
    for words in commands:
        done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotHere(f"a small disk cannot be mounted: {done.stderr.strip()}")
    try:
        yield
    finally:
        shutil.copytree(
            folder, folder.with_name("runs-on-the-small-disk"), ignore=shutil.ignore_patterns("checkpoints")
        )
        subprocess.run(["umount", "--lazy", str(folder)], check=False)
