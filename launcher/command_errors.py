"""How a command reports that it cannot do what it was asked to: messages, and the exit code."""

import errno
import sys
from collections.abc import Callable

from areal_like.config.problems import ConfigError, started_nothing_text
from areal_like.process.exit_codes import BAD_CONFIGURATION, FAILED
from launcher.terminal import red, write_line

SYSTEM_ERRORS = (errno.ENAMETOOLONG, errno.ENOSPC, errno.EIO, errno.EBADF)
"""Errors of paths that are too long, and of output that cannot be written."""


def exit_code_of(command: Callable[[], int]) -> int:
    """Its exit code; that of an error which is then printed."""
    try:
        code = command()
        sys.stdout.flush()
        return code
    except ConfigError as error:
        write_line(_colored(error), sys.stderr)
        return BAD_CONFIGURATION
    except OSError as error:
        if error.errno not in SYSTEM_ERRORS:
            raise
        name = str(error.filename or "output")
        write_line(f"{name[:60]}{'...' if len(name) > 60 else ''}: {error.strerror}", sys.stderr)
        return BAD_CONFIGURATION if error.errno == errno.ENAMETOOLONG else FAILED


def _colored(error: ConfigError) -> str:
    """The problems, keys in red on a terminal, and their number."""
    lines = [error.title] if error.title else []
    for problem in error.problems:
        text = problem.text()
        lines.append(red(problem.key, sys.stderr) + text[len(problem.key) :])
    return "\n".join([*lines, started_nothing_text(len(error.problems))])
