"""Downloads models and datasets from the Hugging Face Hub before a start, so that all processes use the same files."""

import os
import subprocess
import sys
from pathlib import Path

import areal_like
from areal_like.config.loaded import Loaded
from areal_like.config.problems import ConfigError, Problem
from areal_like.data.readers import hub_cache
from launcher.plan import hub
from launcher.plan.datasets import missing_datasets
from launcher.plan.host import HostInfo, local_host
from launcher.terminal import write_line


def fetch_from_hub(loaded: Loaded, host: HostInfo | None = None) -> bool:
    """Returns whether anything was downloaded. Raises ConfigError with every failed download."""
    host = host or local_host()
    models, datasets = hub.missing_models(loaded.config, host), missing_datasets(loaded, host)
    problems = []
    for wants in models:
        key, name = wants[0].key, wants[0].name
        if (why := _fetch(key, name, host)) is not None:
            problems.append(Problem(key, hub.missing_model_text(wants, host, why), loaded.origin(key).where))
    for data in datasets:
        flags = ["--dataset", *(["--revision", data.revision] if data.revision else [])]
        if (why := _fetch(data.key, data.name, host, *flags)) is None:
            continue
        if hub_cache.cached_dataset(data.name, data.revision, host.hub, unlisted=True) is not None:
            write_line(f"{data.key}: {why}; the run uses what is in the cache, which may be a part of it", sys.stderr)
        else:
            message = hub_cache.not_cached_message(data.name, data.revision, host.hub, why)
            problems.append(Problem(data.key, message, loaded.origin(data.key).where))
    if problems:
        raise ConfigError(problems, title="this run cannot start here:")
    return bool(models or datasets)


def _fetch(key: str, name: str, host: HostInfo, *flags: str) -> str | None:
    """Downloads in another process, as the libraries start threads and the guardian has to fork. Returns the error."""
    write_line(f"{key}: fetching {name} from the Hugging Face Hub into {host.hub}", sys.stderr)
    path = os.pathsep.join([str(Path(areal_like.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    quiet = {} if sys.stderr.isatty() else {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    command = [sys.executable, "-m", "areal_like.models.fetch", name, *flags]
    done = subprocess.run(command, env={**os.environ, **quiet, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.strip().splitlines() or [f"the download failed (exit code {done.returncode})"]
    return lines[-1] if done.returncode else None
