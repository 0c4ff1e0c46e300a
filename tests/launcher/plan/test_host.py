"""Detection of this machine's GPUs and memory, with a fake driver library."""

import shutil
import subprocess

import pytest

from areal_like.config.allocation import Machine
from launcher.plan import host
from launcher.plan.host import list_gpus

DRIVER = """
#include <string.h>
struct memory { unsigned long long total, free, used; };
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(size_t)(index + 1); return 0; }
int nvmlDeviceGetName(void *handle, char *name, unsigned length) {
    strncpy(name, (size_t)handle == 1 ? "NVIDIA H200" : "NVIDIA L4", length); return 0; }
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory) {
    if ((size_t)handle == 2) return 3;
    memory->total = 150000000000ULL; return 0; }
"""


def test_names_and_sizes_come_from_the_driver(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = tmp_path / "driver.c", tmp_path / "libdriver.so"
    source.write_text(DRIVER, "utf-8")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    assert list_gpus(str(library)) == (host.Gpu("0", "NVIDIA H200", 150_000_000_000), host.Gpu("1", "NVIDIA L4", None))


@pytest.mark.parametrize(("text", "expected"), [("1048576\n", 1048576), ("max\n", None), (None, None)])
def test_a_container_may_have_less_memory_than_its_machine(tmp_path, text, expected):
    if text is not None:
        (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(text)
    assert host.memory_bytes(tmp_path) == (expected or host.memory_bytes(tmp_path / "nothing"))


def test_no_driver_is_no_gpu():
    assert list_gpus("libthis-is-no-driver.so") == ()


def test_a_given_machine_is_used_unchanged(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    result = host.local_host(Machine(2, 3, "made up"))
    assert [gpu.id for gpu in result.gpus] == ["0", "1"]
    assert len(result.cores) == 3


def test_this_machine_is_inspected(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = host.local_host()
    assert result.gpus == ()
    assert len(result.cores) == result.machine.num_cpu_cores >= 1
    assert result.memory_bytes


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HF_HUB_CACHE": "/hub", "HF_HOME": "/home"}, "/hub"),
        ({"HF_HOME": "/home"}, "/home/hub"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/huggingface/hub"),
    ],
)
def test_the_model_cache_follows_its_environment_variables(monkeypatch, variables, folder):
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(host.local_host(Machine(0, 1, "made up")).hub) == folder
