"""Downloads a model or a dataset from the Hugging Face Hub into the local cache: python -m areal_like.models.fetch NAME

A start does so by itself, before its processes; use this beforehand where there is a network. The last line of output
is the folder, or why the download failed.
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
"""In order of preference: of a model that has both, only the first is downloaded."""
SUBFOLDERS = "*/*"
"""Subfolders of a repository contain the same model for other programs."""
TIMEOUT_S = 10.0
"""Of the first request to the Hub."""
LIBRARIES = ("huggingface_hub", "httpx", "httpcore", "requests")
"""Errors of these libraries mean that the download failed; a trailing number is a later generation."""
UNREACHABLE = {"ConnectionError", "TransportError", "Timeout", "TimeoutError"}
"""Base classes of the errors of a connection, in Python, httpx and requests."""


class FetchFailed(Exception):
    """With a reason in one line, a clause such as "the Hub refused the download (...)"."""


def fetch(name: str) -> Path:
    """The snapshot of a model at `main`, with all files that a run needs."""

    def work(hub: Any) -> Path:
        info = hub.HfApi().model_info(name, timeout=TIMEOUT_S)
        files = [file.rfilename for file in info.siblings or () if not fnmatch(file.rfilename, SUBFOLDERS)]
        weights = next((kind for kind in WEIGHTS if any(fnmatch(file, kind) for file in files)), WEIGHTS[0])
        patterns = [*ALWAYS, weights]
        folder = hub.snapshot_download(
            name, cache_dir=hub_cache(), allow_patterns=patterns, ignore_patterns=[SUBFOLDERS]
        )
        return Path(folder)

    return _call_hub(work)


def fetch_dataset(name: str, revision: str | None = None) -> Path:
    """The complete snapshot of a dataset at a revision (None: `main`)."""

    def work(hub: Any) -> Path:
        hub.HfApi().dataset_info(name, revision=revision, timeout=TIMEOUT_S)
        return Path(hub.snapshot_download(name, repo_type="dataset", revision=revision, cache_dir=hub_cache()))

    return _call_hub(work)


def _call_hub(work: Callable[[Any], Path]) -> Path:
    """`work` begins with a single request, which fails at once without a network: downloads would retry for half a
    minute and log every try."""
    import huggingface_hub

    try:
        return work(huggingface_hub)
    except Exception as fault:
        library = type(fault).__module__.partition(".")[0].rstrip("0123456789")
        if isinstance(fault, OSError | ValueError) or library in LIBRARIES:
            raise FetchFailed(f"{_what_failed(fault)} ({reason(fault)})") from fault
        raise


def _what_failed(fault: BaseException) -> str:
    classes = {each.__name__ for each in type(fault).__mro__}
    if "OfflineModeIsEnabled" in classes:
        return "downloads are turned off"
    return "the Hub could not be reached" if classes & UNREACHABLE else "the Hub refused the download"


def reason(fault: BaseException) -> str:
    """In one line: libraries append advice."""
    text = " ".join(line.strip() for line in str(fault).splitlines()[:2])
    return f"{type(fault).__name__}: {text[:300]}" if text else type(fault).__name__


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Downloads a model or dataset from the Hugging Face Hub into the cache."
    )
    parser.add_argument("name", help="such as Qwen/Qwen3-0.6B")
    parser.add_argument("--dataset", action="store_true", help="NAME is a dataset")
    parser.add_argument("--revision", help="branch, tag or commit of a dataset; main if left out")
    arguments = parser.parse_args()
    if arguments.revision and not arguments.dataset:
        parser.error("--revision requires --dataset; models are taken from main")
    try:
        print(fetch_dataset(arguments.name, arguments.revision) if arguments.dataset else fetch(arguments.name))
    except FetchFailed as refusal:
        print(refusal)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
