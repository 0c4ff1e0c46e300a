"""The machine of a plan: GPUs, cores, memory, installed packages, the Hugging Face cache."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from areal_like.config.allocation import Machine, detect_machine
from areal_like.config.attention import PACKAGES as ATTENTION
from areal_like.discovery.etcd_client import PACKAGE as ETCD
from areal_like.models import hub_cache
from areal_like.observe.trackers.requirements import is_installed, tracker_packages
from areal_like.process.port_check import why_no_port
from areal_like.process.sandbox.sandbox import sandbox_problem
from areal_like.serving.engines.external import installations
from launcher.checks.packages import built_in_packages, missing_packages
from launcher.plan.gpus import Gpu as Gpu
from launcher.plan.gpus import visible_gpus

FindEngine = Callable[[installations.EngineDistribution, str | None, Path, bool], installations.Installation]


class HostInfo(NamedTuple):
    """Everything about a machine that the plan depends on."""

    machine: Machine
    cores: tuple[int, ...]
    gpus: tuple[Gpu, ...] = ()
    memory_bytes: int | None = None
    python: str = sys.executable
    directory: Path = Path()
    hub: Path = Path()
    packages: frozenset[str] = frozenset()
    missing: tuple[str, ...] = ()
    """Packages that the processes of a run import and that are not installed."""
    find_engine: FindEngine = installations.find_installation
    why_no_port: Callable[[str, int], str] = why_no_port
    """Returns why an address cannot be bound; empty where it can."""
    why_no_sandbox: Callable[[str], str] = sandbox_problem
    """Returns why a kind of sandbox does not work; empty where it does."""
    configs: Mapping[str, Path] = {}
    """Model path -> its config.json, as given by --model-config."""
    has_bfloat16: bool = False
    """Whether the processor multiplies matrices in bfloat16."""
    variables: frozenset[str] = frozenset()
    """Names of the environment variables that the processes of a run inherit."""

    @property
    def is_here(self) -> bool:
        return self.machine.is_here


def local_host(known: Machine | None = None) -> HostInfo:
    """This machine; `known` replaces the detection of its GPUs and cores."""
    detected = detect_machine() if known is None else known
    assumed = [Gpu(str(index)) for index in range(detected.num_gpus)]
    return HostInfo(
        machine=detected,
        cores=_cores(detected.num_cpu_cores),
        gpus=tuple(visible_gpus(detected.num_gpus, os.environ) if known is None else assumed),
        memory_bytes=memory_bytes(),
        directory=Path.cwd(),
        hub=hub_cache(),
        packages=frozenset(filter(is_installed, (*ATTENTION, *tracker_packages(), ETCD, *built_in_packages()))),
        missing=missing_packages(),
        has_bfloat16=has_bfloat16(),
        variables=frozenset(os.environ),
    )


def _cores(count: int) -> tuple[int, ...]:
    """The ids of `count` cores, first those that this process may use."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return tuple(allowed[:count]) if len(allowed) >= count else tuple(range(count))


def memory_bytes(root: Path = Path("/")) -> int | None:
    """Memory of the machine, or the limit of the container."""
    if "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = root / "sys/fs/cgroup/memory.max"
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(machine, int(text)) if text.isdigit() else machine


def has_bfloat16(root: Path = Path("/")) -> bool:
    """By the flags of the processor: instructions of x86 (`avx512_bf16`, `amx_bf16`) or Arm (`bf16`)."""
    facts = root / "proc/cpuinfo"
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.is_file() else []
    flags = next((line for line in lines if re.match(r"(flags|Features)\s*:", line)), "")
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags.split())
