"""GPUs, cores and engines of this machine, detected without torch and without NVML."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import ceil
from pathlib import Path

from areal_like.config.engines import gpu_engines

GPU_NAME = re.compile(r"[0-9]{1,9}|(GPU|MIG)-.+")
NO_GPU = ("", "none", "void", "nodevfiles")
"""Entries of CUDA_VISIBLE_DEVICES that hide the GPUs, as a negative number does."""
DRIVER_FILES = ("proc/driver/nvidia/gpus", "dev/nvidiactl", "dev/dxg", "dev/kfd")
NVIDIA_SMI_TIMEOUT_S = 20.0
THIS_MACHINE = "this machine"


@dataclass(frozen=True)
class Machine:
    """GPUs visible to a process, the cores it may use, and how the GPUs were detected."""

    num_gpus: int
    num_cpu_cores: int
    how: str
    engines: tuple[str, ...] = field(default_factory=lambda: tuple(keys.name for keys in gpu_engines()))
    """Those of `gpu_engines` that are installed here."""
    place: str = THIS_MACHINE
    """Its name in messages."""

    @property
    def is_here(self) -> bool:
        """Whether it is the machine that makes the plan."""
        return self.place == THIS_MACHINE


def detect_machine(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> Machine:
    """This machine. Starts `nvidia-smi` only if there is a driver without its files in /proc."""
    num_gpus, how = _gpus(os.environ if environ is None else environ, root)
    engines = tuple(keys.name for keys in gpu_engines() if find_spec(keys.name) is not None)
    return Machine(num_gpus, _cpu_cores(root), how, engines)


def _gpus(environ: Mapping[str, str], root: Path) -> tuple[int, str]:
    has_driver = any((root / name).exists() for name in DRIVER_FILES)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        count, but = _visible(visible, _driver_entries(root))
        if count and not has_driver and not shutil.which("nvidia-smi"):
            count, but = 0, ", but no GPU driver is loaded"
        return count, f"CUDA_VISIBLE_DEVICES={visible}{but}"
    present = _driver_entries(root)
    if present is not None:
        return present, "/proc/driver/nvidia/gpus"
    program = shutil.which("nvidia-smi")
    return (_count_by_nvidia_smi(program), "nvidia-smi -L") if program else (0, "no NVIDIA driver")


def _visible(value: str, present: int | None) -> tuple[int, str]:
    """Like CUDA: up to the first entry that names no GPU, and none if one is named twice. Their number, and what is
    wrong. `present`: how many GPUs the driver has, if that is known."""
    names: list[str] = []
    for entry in (entry.strip() for entry in value.split(",")):
        name = str(int(entry)) if re.fullmatch(r"[0-9]{1,9}", entry) else entry
        if name.lower() in NO_GPU or name.startswith("-"):
            break
        if not GPU_NAME.fullmatch(name):
            return len(names), f", but {entry} names no GPU"
        if name in names:
            return 0, f", but {entry} is there twice: CUDA then uses none"
        if present is not None and name.isdecimal() and int(name) >= present:
            return len(names), f", but the driver has {present}, numbered from 0"
        names.append(name)
    return len(names), ""


def _driver_entries(root: Path) -> int | None:
    try:
        return sum(1 for _ in (root / "proc/driver/nvidia/gpus").iterdir())
    except OSError:
        return None


def _count_by_nvidia_smi(program: str) -> int:
    try:
        answer = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in answer.stdout.splitlines()) if answer.returncode == 0 else 0


def _cpu_cores(root: Path) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, ceil(int(quota) / int(period))))
