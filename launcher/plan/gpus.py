"""The GPUs of this machine that a process may use, as NVML and /sys describe them: size, name, cores nearby.

CUDA counts GPUs in the order of their speed, NVML in that of the PCI bus: processes get CUDA_DEVICE_ORDER=PCI_BUS_ID,
so that a number means the same GPU to both. Names in CUDA_VISIBLE_DEVICES stay as they are: numbers, UUIDs of GPUs or
the beginnings of such, and UUIDs of MIG devices.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import ctypes

NVML = "libnvidia-ml.so.1"
VISIBLE = "CUDA_VISIBLE_DEVICES"
GPU_UUID, MIG_UUID = "GPU-", "MIG-"


class Gpu(NamedTuple):
    """`id`: its name in CUDA_VISIBLE_DEVICES."""

    id: str
    name: str = "GPU"
    memory_bytes: int | None = None
    uuid: str = ""
    bus: str = ""
    """Its folder in /sys/bus/pci/devices; that of the whole GPU for a MIG device."""
    cores: tuple[int, ...] = ()
    """Those of its NUMA node; empty where the machine has one node, or does not say which one is the GPU's."""
    exists: bool = True
    """False where the driver has no GPU of this name."""

    @property
    def is_part(self) -> bool:
        """Whether it is a MIG device: NCCL does not connect these, and a process can use only one."""
        return self.id.startswith(MIG_UUID)


def visible_gpus(count: int, environ: Mapping[str, str], library: str = NVML, root: Path = Path("/")) -> list[Gpu]:
    """The first `count` that a process may use: those in CUDA_VISIBLE_DEVICES where it is set, and no others."""
    names = [str(index) for index in range(count)]
    if VISIBLE in environ:
        names = [name.strip() for name in environ[VISIBLE].split(",") if name.strip()][:count]
    if not count or not (root / "dev/nvidiactl").exists():
        return [Gpu(name) for name in names]
    return [gpu._replace(cores=cores_near(gpu.bus, root)) for gpu in list_gpus(names, library)]


def list_gpus(names: Iterable[str], library: str = NVML) -> list[Gpu]:
    """What NVML knows of these GPUs; without a driver that answers, their names alone."""
    import ctypes  # in milliseconds, where torch takes a second

    names = list(names)
    try:
        nvml = ctypes.CDLL(library)
    except OSError:  # device files without a driver: a container that was given only half of it
        return [Gpu(name) for name in names]
    if nvml.nvmlInit_v2() != 0:
        return [Gpu(name) for name in names]
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return [Gpu(name) for name in names]
        present = [_by_index(nvml, index) for index in range(count.value)]
        return [_named(nvml, name, present) for name in names]
    finally:
        nvml.nvmlShutdown()


def cores_near(bus: str, root: Path = Path("/")) -> tuple[int, ...]:
    """The cores of a GPU's NUMA node that this process may use."""
    nodes = root / "sys/devices/system/node"
    try:
        node = int((root / "sys/bus/pci/devices" / bus / "numa_node").read_text()) if bus else -1
        with_cores = [each for each in nodes.glob("node[0-9]*") if (each / "cpulist").read_text().strip()]
        if node < 0 or len(with_cores) < 2:
            return ()
        near = _parse_ranges((nodes / f"node{node}" / "cpulist").read_text())
    except (OSError, ValueError):
        return ()
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(near)
    return tuple(core for core in near if core in allowed)


def _parse_ranges(text: str) -> list[int]:
    """`0-3,8` is 0, 1, 2, 3, 8."""
    cores: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores


def _named(nvml: "ctypes.CDLL", name: str, present: list[Gpu]) -> Gpu:
    """By number, by UUID or its beginning; a MIG device by asking the driver."""
    if name.startswith(MIG_UUID):
        return _mig_device(nvml, name)
    matches = [gpu for gpu in present if gpu.id == name or (name.startswith(GPU_UUID) and gpu.uuid.startswith(name))]
    return matches[0]._replace(id=name) if len(matches) == 1 else Gpu(name, exists=False)


def _by_index(nvml: "ctypes.CDLL", index: int) -> Gpu:
    import ctypes

    handle = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
        return Gpu(str(index))
    return _described(nvml, str(index), handle)._replace(bus=_bus(nvml, handle))


def _mig_device(nvml: "ctypes.CDLL", name: str) -> Gpu:
    import ctypes

    handle, whole = ctypes.c_void_p(), ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByUUID(ctypes.c_char_p(name.encode()), ctypes.byref(handle)) != 0:
        return Gpu(name, exists=False)
    device = _described(nvml, name, handle)
    has_whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle, ctypes.byref(whole)) == 0
    return device._replace(bus=_bus(nvml, whole)) if has_whole else device


def _described(nvml: "ctypes.CDLL", name: str, handle: Any) -> Gpu:
    import ctypes

    class MemoryInfo(ctypes.Structure):
        _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))

    title, uuid = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    named = nvml.nvmlDeviceGetName(handle, title, ctypes.c_uint(len(title))) == 0
    identified = nvml.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(len(uuid))) == 0
    memory = MemoryInfo()
    sized = nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    return Gpu(
        name,
        title.value.decode() if named else "GPU",
        int(memory.total) if sized else None,
        uuid.value.decode() if identified else "",
    )


def _bus(nvml: "ctypes.CDLL", handle: Any) -> str:
    """The driver writes 00000000:3B:00.0 where /sys has 0000:3b:00.0."""
    import ctypes

    class PciInfo(ctypes.Structure):
        _fields_ = (
            ("legacy", ctypes.c_char * 16),
            ("numbers", ctypes.c_uint * 5),
            ("bus", ctypes.c_char * 32),
        )

    info = PciInfo()
    if nvml.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(info)) != 0:
        return ""
    domain, _, rest = info.bus.decode().lower().partition(":")
    return f"{domain[-4:]}:{rest}"
