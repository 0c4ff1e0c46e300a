"""The machine and the versions that figures are from."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("transformers", "triton", "flash-attn", "flash-attn-3", "vllm", "sglang")


def device() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def machine() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "device": device().type,
        "cpu_count": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: version for name in PACKAGES if (version := _version(name)) is not None},
        "commit": _output("git", "-C", str(ROOT), "rev-parse", "HEAD"),
    }
    if device().type == "cuda":
        about = torch.cuda.get_device_properties(0)
        facts |= {
            "gpu": about.name,
            "capability": f"{about.major}.{about.minor}",
            "memory_gb": about.total_memory / 1e9,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        }
    return facts


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _output(*words: str) -> str | None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
