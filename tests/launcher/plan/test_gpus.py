"""GPUs by number, by UUID and as parts (MIG), from a driver and a /sys that are made up."""

import os
import shutil
import subprocess

import pytest

from launcher.plan import gpus
from launcher.plan.gpus import Gpu, cores_near, list_gpus, visible_gpus
from tests.support.planning import machine_with, of_role, plan_of

DRIVER = """
#include <string.h>
struct memory { unsigned long long total, free, used; };
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(size_t)(index + 1); return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    if (strcmp(uuid, "MIG-7")) return 6;
    *handle = (void *)3; return 0; }
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *part, void **handle) { *handle = (void *)2; return 0; }
int nvmlDeviceGetName(void *handle, char *name, unsigned length) {
    strncpy(name, (size_t)handle == 1 ? "NVIDIA H200" : (size_t)handle == 2 ? "NVIDIA L4" : "MIG 1g.10gb", length);
    return 0; }
int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length) {
    strncpy(uuid, (size_t)handle == 1 ? "GPU-aa11" : (size_t)handle == 2 ? "GPU-ab22" : "MIG-7", length); return 0; }
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory) {
    if ((size_t)handle == 2) return 3;
    memory->total = (size_t)handle == 1 ? 150000000000ULL : 10000000000ULL; return 0; }
int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *info) {
    strcpy(info->bus_id, (size_t)handle == 1 ? "00000000:3B:00.0" : "00000000:AF:00.0"); return 0; }
"""
H200 = Gpu("0", "NVIDIA H200", 150_000_000_000, "GPU-aa11", "0000:3b:00.0")
L4 = Gpu("1", "NVIDIA L4", None, "GPU-ab22", "0000:af:00.0")


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source = tmp_path_factory.mktemp("driver") / "driver.c"
    library = source.with_name("libdriver.so")
    source.write_text(DRIVER, "utf-8")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return str(library)


def test_names_and_sizes_come_from_the_driver(driver):
    assert list_gpus(["0", "1"], driver) == [H200, L4]
    assert list_gpus(["1"], driver) == [L4]


def test_gpus_are_found_by_uuid_and_keep_their_names(driver):
    assert list_gpus(["GPU-ab22", "GPU-aa"], driver) == [L4._replace(id="GPU-ab22"), H200._replace(id="GPU-aa")]
    absent = [Gpu(name, exists=False) for name in ("GPU-a", "GPU-9", "8")]
    assert list_gpus(["GPU-a", "GPU-9", "8"], driver) == absent


def test_a_mig_device_has_its_own_memory_and_the_bus_of_its_gpu(driver):
    part, unknown = list_gpus(["MIG-7", "MIG-8"], driver)
    assert part == Gpu("MIG-7", "MIG 1g.10gb", 10_000_000_000, "MIG-7", "0000:af:00.0")
    assert unknown == Gpu("MIG-8", exists=False) and part.is_part and not H200.is_part


def test_without_a_driver_gpus_have_names_alone(tmp_path):
    assert list_gpus(["0"], "libthis-is-no-driver.so") == [Gpu("0")]
    assert visible_gpus(2, {"CUDA_VISIBLE_DEVICES": "GPU-x, MIG-y"}, root=tmp_path) == [Gpu("GPU-x"), Gpu("MIG-y")]
    assert visible_gpus(3, {"CUDA_VISIBLE_DEVICES": "4,GPU-x"}, root=tmp_path) == [Gpu("4"), Gpu("GPU-x")]
    assert visible_gpus(2, {}, root=tmp_path) == [Gpu("0"), Gpu("1")] and visible_gpus(0, {}) == []


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("0", "7"), "names 7, and this machine has no such GPU"),
        (("0",), "names 1 GPU (0) instead of 2"),
        (("0", "1"), None),
    ],
)
def test_names_of_too_few_gpus_are_refused_before_a_start(names, why):
    gpus = tuple(Gpu(name, exists=name != "7") for name in names)
    needs = plan_of("grpo", host=machine_with(2)._replace(gpus=gpus)).needs
    assert [each.message.partition(";")[0] for each in needs if each.key == "CUDA_VISIBLE_DEVICES"] == (
        [why] if why else []
    )


def two_nodes(root, node, cpulists=("0-3,8", "4-7")):
    for number, cpulist in enumerate(cpulists):
        folder = root / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpulist}\n")
    device = root / "sys/bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text(f"{node}\n")
    return root


@pytest.mark.parametrize(
    ("node", "cpulists", "expected"),
    [
        (0, ("0-3,8", "4-7"), (0, 1, 2, 3, 8)),
        (1, ("0-3,8", "4-7"), (4, 5, 6, 7)),
        (-1, ("0-3", "4-7"), ()),
        (0, ("0-7",), ()),
        (0, ("0-7", ""), ()),
    ],
)
def test_cores_near_a_gpu_are_those_of_its_numa_node(tmp_path, monkeypatch, node, cpulists, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert cores_near("0000:3b:00.0", two_nodes(tmp_path, node, cpulists)) == expected
    assert cores_near("", tmp_path) == cores_near("0000:00:00.0", tmp_path) == ()


def test_a_gpu_of_this_machine_gets_only_cores_that_are_allowed(tmp_path, monkeypatch, driver):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 5})
    root = two_nodes(tmp_path, 0)
    (root / "dev").mkdir()
    (root / "dev/nvidiactl").touch()
    assert visible_gpus(1, {}, driver, root) == [H200._replace(cores=(1, 2))]


def numa_host():
    """Two GPUs on each of two nodes of 16 cores."""
    host = machine_with(4, 32)
    near = [tuple(range(16)), tuple(range(16)), tuple(range(16, 32)), tuple(range(16, 32))]
    placed = [gpu._replace(cores=cores) for gpu, cores in zip(host.gpus, near, strict=True)]
    return host._replace(gpus=tuple(placed))


def test_processes_run_on_the_cores_near_their_gpu():
    words = ("rollout.backend=embedded:d2", "actor.backend=fsdp:d2")
    plan = plan_of("grpo", *words, host=numa_host())
    assert [process.cores for process in of_role(plan, "server")] == [tuple(range(16))] * 2
    assert [process.cores for process in of_role(plan, "trainer")] == [tuple(range(16, 32))] * 2
    unbound = plan_of("grpo", *words, "launcher.numa_binding=false", host=numa_host())
    assert {process.cores for process in unbound.processes if process.gpus} == {()}
    assert {process.cores for process in plan_of("grpo", *words, gpus=4).processes if process.gpus} == {()}


def test_a_server_over_two_nodes_may_use_the_cores_of_both():
    plan = plan_of("grpo", "actor.path=m", "rollout.backend=vllm:d1t3", "actor.backend=fsdp:d1", host=numa_host())
    assert of_role(plan, "server")[0].cores == tuple(range(32))


def test_parts_of_gpus_are_not_connected():
    parts = tuple(Gpu(f"MIG-{number}") for number in range(4))
    host = machine_with(4)._replace(gpus=parts)
    needs = {each.key: each.message for each in plan_of("grpo", host=host).needs}
    assert "NCCL does not connect parts of GPUs" in needs["actor.backend"]
    alone = plan_of("grpo", "rollout.backend=embedded:d3", "actor.backend=fsdp:d1", host=host)
    assert not alone.needs
    assert [process.env[gpus.VISIBLE] for process in of_role(alone, "server")] == ["MIG-0", "MIG-1", "MIG-2"]
    assert of_role(alone, "trainer")[0].env[gpus.VISIBLE] == "MIG-3"


ALLOCATOR = "PYTORCH_ALLOC_CONF"


def test_processes_count_gpus_in_the_order_of_the_bus():
    plan = plan_of("grpo", gpus=2)
    ordered = {process.role for process in plan.processes if process.env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"}
    assert ordered == {"server", "trainer"}
    assert not any("CUDA_DEVICE_ORDER" in process.env for process in plan_of("grpo").processes)


def test_trainers_on_a_gpu_have_memory_blocks_that_grow():
    plan = plan_of("grpo", gpus=2)
    assert of_role(plan, "trainer")[0].env[ALLOCATOR] == "expandable_segments:True"
    assert {process.role for process in plan.processes if ALLOCATOR in process.env} == {"trainer"}
    assert not any(ALLOCATOR in process.env for process in plan_of("grpo").processes)
    opened = plan_of("grpo", "actor.weight_update_mode=collective", gpus=1)
    assert ALLOCATOR not in of_role(opened, "trainer")[0].env


def test_the_users_own_variables_of_cuda_and_torch_win():
    inherited = {"CUDA_DEVICE_ORDER", "PYTORCH_CUDA_ALLOC_CONF"}
    host = machine_with(2)._replace(variables=frozenset(inherited))
    env = of_role(plan_of("grpo", host=host), "trainer")[0].env
    assert not env.keys() & {*inherited, ALLOCATOR}
    words = ("+launcher.env.CUDA_DEVICE_ORDER=FASTEST_FIRST", "launcher.trainer_env_vars='PYTORCH_ALLOC_CONF=a:b'")
    env = of_role(plan_of("grpo", *words, gpus=2), "trainer")[0].env
    assert (env["CUDA_DEVICE_ORDER"], env[ALLOCATOR]) == ("FASTEST_FIRST", "a:b")
