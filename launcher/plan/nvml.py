"""Names and sizes of NVIDIA GPUs, asked of the driver's own library: a few milliseconds, where torch takes a second."""

import ctypes

from launcher.plan.host import Gpu

LIBRARY = "libnvidia-ml.so.1"


class _MemoryInfo(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def list_gpus(library: str = LIBRARY) -> tuple[Gpu, ...]:
    """All GPUs of this machine, in the driver's order; none when the driver does not answer."""
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


def _gpu(nvml: ctypes.CDLL, index: int) -> Gpu:
    handle = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
        return Gpu(str(index))
    name = ctypes.create_string_buffer(96)
    named = nvml.nvmlDeviceGetName(handle, name, ctypes.c_uint(len(name))) == 0
    memory = _MemoryInfo()
    sized = nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    return Gpu(str(index), name.value.decode() if named else "GPU", int(memory.total) if sized else None)
