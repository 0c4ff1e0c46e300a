"""The machine of a plan: GPUs, cores, memory, installed packages, the Hugging Face cache."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from areal_like.config.allocation import Machine, detect_machine
from areal_like.config.attention import PACKAGES as ATTENTION
from areal_like.discovery.etcd_client import PACKAGE as ETCD
from areal_like.models import hub_cache
from areal_like.observe.trackers.requirements import PACKAGES as TRACKERS
from areal_like.observe.trackers.requirements import is_installed
from areal_like.process.port_check import why_no_port
from areal_like.serving.engines.external import installations
from launcher.checks.packages import missing_packages

if TYPE_CHECKING:
    import ctypes

NVML = "libnvidia-ml.so.1"


FindEngine = Callable[[installations.EngineDistribution, str | None, Path, bool], installations.Installation]


class Gpu(NamedTuple):
    """`id`: its name in CUDA_VISIBLE_DEVICES."""

    id: str
    name: str = "GPU"
    memory_bytes: int | None = None


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
    configs: Mapping[str, Path] = {}
    """Model path -> its config.json, as given by --model-config."""

    @property
    def is_here(self) -> bool:
        return self.machine.is_here


def local_host(known: Machine | None = None) -> HostInfo:
    """This machine; `known` replaces the detection of its GPUs and cores."""
    detected = detect_machine() if known is None else known
    return HostInfo(
        machine=detected,
        cores=_cores(detected.num_cpu_cores),
        gpus=_gpus(detected.num_gpus, detect=known is None),
        memory_bytes=memory_bytes(),
        directory=Path.cwd(),
        hub=hub_cache(),
        packages=frozenset(filter(is_installed, (*ATTENTION, *TRACKERS, ETCD))),
        missing=missing_packages(),
    )


def _cores(count: int) -> tuple[int, ...]:
    """The ids of `count` cores, first those that this process may use."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return tuple(allowed[:count]) if len(allowed) >= count else tuple(range(count))


def _gpus(count: int, detect: bool) -> tuple[Gpu, ...]:
    """With the names in CUDA_VISIBLE_DEVICES, where it is set."""
    if not count:
        return ()
    names = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()][:count]
    if not detect or len(names) < count:
        names = [str(index) for index in range(count)]
    if not detect or not Path("/dev/nvidiactl").exists():
        return tuple(Gpu(name) for name in names)

    sizes = {gpu.id: gpu for gpu in list_gpus()}
    return tuple(sizes.get(name, Gpu(name)) for name in names)


def memory_bytes(root: Path = Path("/")) -> int | None:
    """Memory of the machine, or the limit of the container."""
    if "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = root / "sys/fs/cgroup/memory.max"
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(machine, int(text)) if text.isdigit() else machine


def list_gpus(library: str = NVML) -> tuple[Gpu, ...]:
    """All NVIDIA GPUs of this machine, as NVML lists them; empty when the driver does not answer."""
    import ctypes  # in milliseconds, where torch takes a second

    try:
        nvml = ctypes.CDLL(library)
    except OSError:  # device files without a driver: a container that was given only half of it
        return ()
    if nvml.nvmlInit_v2() != 0:
        return ()
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return ()
        return tuple(_gpu(nvml, index) for index in range(count.value))
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: "ctypes.CDLL", index: int) -> Gpu:
    import ctypes

    class MemoryInfo(ctypes.Structure):
        _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))

    handle = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
        return Gpu(str(index))
    name = ctypes.create_string_buffer(96)
    named = nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(len(name))) == 0
    memory = MemoryInfo()
    sized = nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    return Gpu(str(index), name.value.decode() if named else "GPU", int(memory.total) if sized else None)
