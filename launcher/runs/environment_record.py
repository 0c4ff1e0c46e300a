"""Records the environment of a run: `environment.txt` (machine, packages) and `code.txt` (git revision and diff)."""

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import areal_like
from areal_like.config.redact import Redactor
from launcher.runs.run_files import replace_file

RECORDED_PREFIXES = ("CUDA_", "HF_", "TORCH", "NCCL_", "GLOO_", "OMP_", "MKL_", "SLURM_", "RAY_", "PYTHON")
MAX_DIFF_CHARS = 1 << 20
GIT_S = 10.0

ENVIRONMENT, CODE = "environment.txt", "code.txt"


def write_environment_record(
    run_dir: Path, folders: list[Path], redactor: Redactor, clean: Callable[[str], str], attempt: int
) -> None:
    """`clean` removes secrets that are not in the configuration."""
    replace_file(run_dir / ENVIRONMENT, clean(environment_text(redactor)), attempt)
    code = code_text([Path(areal_like.__file__).parent, *folders])
    replace_file(run_dir / CODE, clean(redactor.text(code)) if code else None, attempt)


def environment_text(redactor: Redactor) -> str:
    """Python, the machine, environment variables that influence a run, and every installed package."""
    uname = platform.uname()
    lines = [
        f"areal-like {areal_like.__version__}",
        f"python {platform.python_version()} ({sys.executable})",
        f"platform {platform.platform()} on {uname.node}",
        f"cores {len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "",
        "variables",
    ]
    chosen = {name: value for name, value in sorted(os.environ.items()) if name.startswith(RECORDED_PREFIXES)}
    lines += [f"  {name}={value}" for name, value in redactor.environment(chosen).items()]
    packages = {(dist.metadata["Name"] or "?", dist.version) for dist in metadata.distributions()}
    lines += ["", "packages", *(f"  {name}=={version}" for name, version in sorted(packages, key=_by_name))]
    return "\n".join(lines) + "\n"


def _by_name(package: tuple[str, str]) -> tuple[str, str]:
    return package[0].lower(), package[1]


def code_text(folders: list[Path]) -> str:
    """Revision, status and diff of each git repository that contains one of the folders."""
    parts, seen = [], set()
    for folder in folders:
        top = _git(folder, "rev-parse", "--show-toplevel").strip()
        revision = _git(folder, "rev-parse", "HEAD").strip()
        if not top or not revision or top in seen:
            continue
        seen.add(top)
        status, diff = _git(Path(top), "status", "--short"), _git(Path(top), "diff", "HEAD")
        if len(diff) > MAX_DIFF_CHARS:
            diff = diff[:MAX_DIFF_CHARS] + "\n... the rest of the diff is omitted\n"
        parts.append("\n".join([f"{top} at {revision}", status, diff]))
    return "\n".join(parts)


def _git(folder: Path, *arguments: str) -> str:
    """Empty without git, or outside of a repository."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=GIT_S, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""
