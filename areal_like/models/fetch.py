"""Brings a model or a dataset of the Hugging Face Hub into the local cache: python -m areal_like.models.fetch NAME

A start does so by itself, before its processes; with this it can be done where there is a network. The last line of
what it prints is the folder, or why the Hub does not give it.
"""

import argparse
import sys
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from areal_like.models import hub_cache

ALWAYS = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "*.py")
WEIGHTS = ("*.safetensors", "*.bin")
"""The better first: of a model that is there in both, the second is not fetched."""
SUBFOLDERS = "*/*"
"""Folders within a repository hold the same model for other programs."""
TIMEOUT_S = 10.0
"""How long the Hub may take to say that it has something, before anything is fetched."""
LIBRARIES = ("huggingface_hub", "httpx", "httpcore", "requests")
"""Whose errors mean that the Hub did not give it; a number behind the name is a later generation."""


class FetchFailed(Exception):
    """The text says why, in a line."""


def fetch(name: str) -> Path:
    """The snapshot of a model that `main` is now, with all that a run needs of it."""

    def work(hub: Any) -> Path:
        said = hub.HfApi().model_info(name, timeout=TIMEOUT_S)
        there = [file.rfilename for file in said.siblings or () if not fnmatch(file.rfilename, SUBFOLDERS)]
        weights = next((kind for kind in WEIGHTS if any(fnmatch(file, kind) for file in there)), WEIGHTS[0])
        wanted = [*ALWAYS, weights]
        folder = hub.snapshot_download(name, cache_dir=hub_cache(), allow_patterns=wanted, ignore_patterns=[SUBFOLDERS])
        return Path(folder)

    return _call_hub(work)


def fetch_dataset(name: str, revision: str | None = None) -> Path:
    """The snapshot of a dataset that a revision (None: `main`) is now, whole."""

    def work(hub: Any) -> Path:
        hub.HfApi().dataset_info(name, revision=revision, timeout=TIMEOUT_S)
        return Path(hub.snapshot_download(name, repo_type="dataset", revision=revision, cache_dir=hub_cache()))

    return _call_hub(work)


def _call_hub(work: Callable[[Any], Path]) -> Path:
    """`work` asks once whether the Hub has it, which fails at once without a network: downloads try again for half a
    minute, and log every try."""
    import huggingface_hub

    try:
        return work(huggingface_hub)
    except Exception as fault:
        library = type(fault).__module__.partition(".")[0].rstrip("0123456789")
        if isinstance(fault, OSError | ValueError) or library in LIBRARIES:
            raise FetchFailed(reason(fault)) from fault
        raise


def reason(fault: BaseException) -> str:
    """In a line: libraries add advice."""
    said = " ".join(line.strip() for line in str(fault).splitlines()[:2])
    return f"{type(fault).__name__}: {said[:300]}" if said else type(fault).__name__


def main() -> int:
    parser = argparse.ArgumentParser(description="Brings a model or dataset of the Hugging Face Hub into the cache.")
    parser.add_argument("name", help="such as Qwen/Qwen3-0.6B")
    parser.add_argument("--dataset", action="store_true", help="the name is that of a dataset")
    parser.add_argument("--revision", help="branch, tag or commit of a dataset; main if left out")
    said = parser.parse_args()
    if said.revision and not said.dataset:
        parser.error("--revision is of a dataset; models are taken as main has them")
    try:
        print(fetch_dataset(said.name, said.revision) if said.dataset else fetch(said.name))
    except FetchFailed as refusal:
        print(refusal)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
