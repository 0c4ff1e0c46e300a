"""Detection of this machine's cores, memory and folders."""

import pytest

from areal_like.config.allocation import Machine
from launcher.plan import host


@pytest.mark.parametrize(("text", "expected"), [("1048576\n", 1048576), ("max\n", None), (None, None)])
def test_a_container_may_have_less_memory_than_its_machine(tmp_path, text, expected):
    if text is not None:
        (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(text)
    assert host.memory_bytes(tmp_path) == (expected or host.memory_bytes(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16\nbugs\t\t: bf16\n", True),
        ("flags\t\t: fpu avx512f\nbugs\t\t: avx512_bf16\n", False),
        ("Features\t: fp asimd bf16\n", True),
        (None, False),
    ],
)
def test_a_processor_names_its_instructions_for_bfloat16(tmp_path, facts, expected):
    if facts is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/cpuinfo").write_text(facts)
    assert host.has_bfloat16(tmp_path) is expected


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
