"""Models of the Hub that are not on this machine yet are fetched before anything starts, so that all roles find one."""

import os
import subprocess
import sys
from pathlib import Path

import areal_like
from areal_like.config.loaded import Loaded
from areal_like.config.problems import ConfigError, Problem
from launcher.plan.host import Host, here
from launcher.plan.hub import missing, not_there
from launcher.terminal import tell


def fetch_models(loaded: Loaded, host: Host | None = None) -> bool:
    """Whether there was one to fetch. Raises ConfigError where the Hub does not give it."""
    host = host or here()
    lacking = missing(loaded.config, host)
    for wants in lacking:
        key, name = wants[0].key, wants[0].name
        tell(f"{key}: fetching {name} from the Hugging Face Hub into {host.hub}", sys.stderr)
        if (why := _fetch(name)) is not None:
            reason = f"the Hub does not give it ({why})"
            raise ConfigError([Problem(key, not_there(wants, host, reason), loaded.origin(key).where)])
    return bool(lacking)


def _fetch(name: str) -> str | None:
    """What went wrong. In a process of its own: the libraries leave threads behind, and the guardian is to fork."""
    path = os.pathsep.join([str(Path(areal_like.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    quiet = {} if sys.stderr.isatty() else {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    command = [sys.executable, "-m", "areal_like.models.fetch", name]
    done = subprocess.run(command, env={**os.environ, **quiet, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else None
