"""The versions of verifiers whose private members are used here, as it has no public ones for the purpose."""

from importlib import metadata
from typing import Any

TESTED = "0.1.14 and 0.4.0"


def require(owner: Any, member: str) -> None:
    """Raises RuntimeError where the installed verifiers lacks it."""
    if hasattr(owner, member):
        return
    try:
        version = metadata.version("verifiers")
    except metadata.PackageNotFoundError:
        version = "of an unknown version"
    named = owner.__name__ if isinstance(owner, type) else type(owner).__name__
    raise RuntimeError(
        f"verifiers {version} is not supported: its {named} has no {member}; the versions {TESTED} are tested"
    )
