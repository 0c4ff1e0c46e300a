"""The command. Each answer imports only what it needs: `--help` knows no Hydra, and nothing here knows torch."""

import contextlib
import errno
import gc
import os
import signal
import sys
from collections.abc import Sequence

from areal_like.config.problems import ConfigError, Problem
from areal_like.process.exit_codes import BAD_CONFIGURATION, DONE, FAILED, INTERRUPTED
from launcher.arguments import Arguments, parse_arguments
from launcher.terminal import bold, red, write_line

SYSTEM_ERRORS = (errno.ENAMETOOLONG, errno.ENOSPC, errno.EIO, errno.EBADF)
"""What goes wrong with a path that is too long, and with an answer that nobody can take."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    gc.disable()
    try:
        _stand_somewhere()
        code = _answer(parse_arguments(words))
        sys.stdout.flush()
        return code
    except ConfigError as error:
        write_line(_colored(error), sys.stderr)
        return BAD_CONFIGURATION
    except OSError as error:
        if error.errno not in SYSTEM_ERRORS:
            raise
        name = str(error.filename or "the answer")
        write_line(f"{name[:60]}{'...' if len(name) > 60 else ''}: {error.strerror}", sys.stderr)
        return BAD_CONFIGURATION if error.errno == errno.ENAMETOOLONG else FAILED
    finally:
        gc.enable()


def _stand_somewhere() -> None:
    """Paths are taken from the working directory; one that was deleted under a shell has none."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError([Problem("working directory", "does not exist any more; cd to one that does")]) from None


def command() -> int:
    """The installed command, and `python -m launcher`. Leaves at once: tearing the interpreter down takes tens of
    milliseconds. Not after a sweep, whose workers would be left behind."""
    signal.signal(signal.SIGPIPE, _reader_has_gone)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by whoever started us; in this order each gets its own number back
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    try:
        code = main()
    except KeyboardInterrupt:
        code = INTERRUPTED
    if not {"--multirun", "-m"} & set(sys.argv):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # what nobody takes was told of already
                stream.flush()
        os._exit(code)
    return code


def _reader_has_gone(*_: object) -> None:
    """`| head` ends an answer quietly, and what it has made for itself is tidied up."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(FAILED)


def _answer(arguments: Arguments) -> int:
    if arguments.version:
        from areal_like import __version__

        print(f"areal-like {__version__}")
        return DONE
    if arguments.help is not None:
        from launcher.commands.help import show_help

        return show_help(arguments.help, arguments.schema_class)
    if arguments.command == "keys":
        if arguments.overrides:
            raise ConfigError([Problem("keys", "takes no overrides", "command line")])
        from areal_like.config.describe.key_counts import summary_text

        print(summary_text())
        return DONE
    if arguments.command == "chat":
        from launcher.commands.chat import chat

        assert arguments.operand is not None
        return chat(arguments.operand, arguments.overrides)
    if arguments.config is None and any(word.startswith("resume=") for word in arguments.overrides):
        from launcher.runs.resume import resume_arguments

        arguments = resume_arguments(arguments)
    if arguments.schema is not None and arguments.config is None:
        from launcher.commands.schema import show_schema

        return show_schema(arguments.schema_class)
    if arguments.config is None:
        message = (
            "is missing; name a file or a shipped experiment (--config grpo.yaml), or a run to go on with (resume=RUN)"
        )
        raise ConfigError([Problem("--config", message)])
    if arguments.multirun and arguments.command == "serve":
        raise ConfigError(
            [Problem("serve", "starts the servers of one configuration; drop --multirun", "command line")]
        )
    if arguments.multirun:
        from launcher.commands.sweep import sweep_command

        return sweep_command(arguments)
    return _single(arguments)


def _single(arguments: Arguments) -> int:
    from areal_like.config.dependent_keys import DEPENDENT_KEYS
    from areal_like.config.load import load
    from launcher.runs.dependent_overrides import recorded_references

    assert arguments.config is not None
    overrides, target = arguments.overrides, None
    if arguments.for_machine is not None or arguments.model_config is not None:
        from launcher.plan.target_machine import TargetMachine

        target = TargetMachine(arguments.for_machine, arguments.model_config)
        overrides = [*target.overrides, *overrides]
    known = target.machine if target is not None else None
    dependent_keys = {**DEPENDENT_KEYS, **recorded_references(arguments.config)}
    loaded = load(arguments.config, overrides, arguments.schema_class, known, dependent_keys)
    if arguments.schema is True:
        from launcher.commands.schema import print_schema

        return print_schema([loaded.schema])
    if arguments.explain is not None:
        from launcher.commands.explain import explain

        print(explain(loaded, arguments.explain, bold))
        return DONE
    if arguments.cfg is not None:
        from launcher.commands.show_config import configuration_text

        print(configuration_text(loaded, arguments.cfg if isinstance(arguments.cfg, str) else None), end="")
        return DONE
    from launcher.commands.run import dry_run, start

    serves = arguments.command == "serve"
    if arguments.dry_run is not None:
        host = target.host(loaded.config) if target is not None else None
        return dry_run(loaded, arguments.dry_run, arguments.replace, serves, host)
    return start(loaded, arguments.replace, serves)


def _colored(error: ConfigError) -> str:
    """The problems, keys in red on a terminal."""
    lines = [error.title] if error.title else []
    for problem in error.problems:
        text = problem.text()
        lines.append(red(problem.key, sys.stderr) + text[len(problem.key) :])
    if len(error.problems) > 1:
        lines.append(f"{len(error.problems)} problems; nothing was started.")
    return "\n".join(lines)
