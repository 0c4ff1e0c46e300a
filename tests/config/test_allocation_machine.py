"""Counting GPUs and cores without torch, on machines made of files."""

import os
import subprocess
from pathlib import Path

import pytest

from areal_like.config.allocation import detect_machine


def fake_root(path: Path, cards: int) -> Path:
    for card in range(cards):
        (path / f"proc/driver/nvidia/gpus/0000:{card:02x}:00.0").mkdir(parents=True)
    return path


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        *((None, 4), ("", 0), ("-1", 0), ("0", 1), ("2,3", 2), ("0,-1,1", 1), ("NoDevFiles", 0), ("0,1,2,3,4,5", 4)),
        *((" 1 , 2 ", 2), ("GPU-a, MIG-b", 2), ("1,9", 1), ("9", 0), ("all", 0), ("0;1", 0), ("0,,1", 1), (",", 0)),
        *(("1,1", 0), ("0,00", 0), ("GPU-a,GPU-a", 0), ("0,GPU-", 1), ("\u00b2", 0)),
    ],
)
def test_gpus_are_counted_from_the_environment_then_the_driver(tmp_path, visible, count):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = detect_machine(environ, fake_root(tmp_path, 4))
    assert found.num_gpus == count
    assert ("CUDA_VISIBLE_DEVICES" in found.how) == (visible is not None)
    assert found.num_cpu_cores >= 1


@pytest.mark.parametrize(
    ("visible", "words"),
    [
        ("all", "=all, but all names no GPU"),
        ("2,2", "=2,2, but 2 is there twice: CUDA then uses none"),
        ("0,7", "=0,7, but the driver has 4, numbered from 0"),
    ],
)
def test_what_is_wrong_with_the_visible_gpus_is_said(tmp_path, visible, words):
    assert detect_machine({"CUDA_VISIBLE_DEVICES": visible}, fake_root(tmp_path, 4)).how.endswith(words)


def test_gpu_partitions_are_counted_by_name(tmp_path):
    assert detect_machine({"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, fake_root(tmp_path, 1)).num_gpus == 2


def test_without_a_driver_no_gpu_is_counted(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert detect_machine({}, tmp_path).num_gpus == 0
    found = detect_machine({"CUDA_VISIBLE_DEVICES": "0,1"}, tmp_path)
    assert found.num_gpus == 0 and "no GPU driver" in found.how


@pytest.mark.parametrize(("script", "count"), [("echo 'GPU 0: A'; echo '  MIG 1g'; echo 'GPU 1: A'", 2), ("exit 9", 0)])
def test_nvidia_smi_is_run_where_driver_files_are_missing(tmp_path, monkeypatch, script, count):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = detect_machine({}, tmp_path)
    assert (found.num_gpus, found.how) == (count, "nvidia-smi -L")


def test_cores_are_limited_by_the_container(tmp_path):
    quota = tmp_path / "sys/fs/cgroup/cpu.max"
    quota.parent.mkdir(parents=True)
    quota.write_text("100000 100000\n")
    assert detect_machine({}, tmp_path).num_cpu_cores == 1
    quota.write_text("max 100000\n")
    assert detect_machine({}, tmp_path).num_cpu_cores == len(os.sched_getaffinity(0))


def test_looking_without_a_driver_starts_no_process(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", None)
    assert detect_machine({}, tmp_path).num_gpus == 0
