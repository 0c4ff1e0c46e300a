"""What trackers are told about a run besides its metrics."""

from collections.abc import Mapping
from typing import Any

import yaml

from areal_like.process.run import CONFIG, Run


def tracker_config(run: Run, more: Mapping[str, Any] | None) -> dict[str, Any]:
    """The configuration as it stands in the run directory, which is without secrets, and the entries of the user's."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    values = yaml.load((run.directory / CONFIG).read_text(encoding="utf-8"), loader)
    values.pop("defaults", None)
    return {**values, **(more or {})}
