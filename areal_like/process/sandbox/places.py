"""What of the machine a program in the sandbox can see: the interpreter, libraries and programs, a few devices."""

import os
import sys
from pathlib import Path

from areal_like.process.sandbox.confine import BOOT

PACKAGE = Path(__file__).parents[3]
"""The folder of the package."""
INTERPRETER = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
"""That of the virtual environment is a link to it."""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
PROGRAM_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}


def readable_places() -> list[str]:
    """System folders, and that of Python where it lies elsewhere."""
    python = [] if Path(sys.base_prefix).is_relative_to("/usr") else [sys.base_prefix]
    return [path for path in (*SYSTEM, *python) if os.path.exists(path)]


def confine_command(package: str) -> list[str]:
    """Starts `confine` from a folder that has the package; the descriptor of the orders is the last argument."""
    return [INTERPRETER, "-I", "-S", "-B", "-c", BOOT, package]
