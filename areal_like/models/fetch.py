"""Brings a model of the Hugging Face Hub into the local cache: python -m areal_like.models.fetch NAME

A start does so by itself, before its processes; with this it can be done where there is a network. The last line of
what it prints is the folder.
"""

import argparse
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from areal_like.models import hub_cache

ALWAYS = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "*.py")
WEIGHTS = ("*.safetensors", "*.bin")
"""The better first: of a model that is there in both, the second is not fetched."""
ELSEWHERE = "*/*"
"""Folders within a repository hold the same model for other programs."""


def fetch(name: str) -> Path:
    """The snapshot that `main` is now, with all that a run needs of it. Raises what huggingface_hub does: kinds of
    OSError and ValueError."""
    import huggingface_hub

    hub: Any = huggingface_hub
    there = [file for file in hub.HfApi().list_repo_files(name) if not fnmatch(file, ELSEWHERE)]
    weights = next((kind for kind in WEIGHTS if any(fnmatch(file, kind) for file in there)), WEIGHTS[0])
    wanted = [*ALWAYS, weights]
    return Path(hub.snapshot_download(name, cache_dir=hub_cache(), allow_patterns=wanted, ignore_patterns=[ELSEWHERE]))


def reason(fault: BaseException) -> str:
    """In a line: libraries add advice."""
    said = " ".join(line.strip() for line in str(fault).splitlines()[:2])
    return f"{type(fault).__name__}: {said[:300]}" if said else type(fault).__name__


def main() -> int:
    parser = argparse.ArgumentParser(description="Brings a model of the Hugging Face Hub into the local cache.")
    parser.add_argument("name", help="such as Qwen/Qwen3-0.6B")
    try:
        print(fetch(parser.parse_args().name))
    except (OSError, ValueError) as fault:  # its own errors, and those of what it calls with, are kinds of these
        print(reason(fault))
        return 1
    except Exception as fault:
        if type(fault).__module__.partition(".")[0] not in ("httpx", "httpcore", "requests", "huggingface_hub"):
            raise
        print(reason(fault))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
