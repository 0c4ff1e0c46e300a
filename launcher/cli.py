"""The command line interface. Commands are imported on use: `--help` needs no Hydra, nothing needs torch."""

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from areal_like.config.problems import ConfigError, Problem
from areal_like.process.exit_codes import DONE, FAILED, INTERRUPTED
from launcher.arguments import EVAL, Arguments, parse_arguments
from launcher.command_errors import exit_code_of
from launcher.terminal import bold

ONE_CONFIGURATION = {"serve": "starts the servers", "try": "tries the rows", "overlap": "compares the rows"}
OWN_TRIAL = ("trial_name=auto",)
"""Rows are tried in a folder of their own, which is removed at the end."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    gc.disable()
    try:
        return exit_code_of(lambda: _run(words))
    finally:
        gc.enable()


def _run(words: Sequence[str]) -> int:
    _check_working_directory()
    return _dispatch(parse_arguments(words))


def _check_working_directory() -> None:
    """Paths are relative to the working directory, which may have been deleted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError([Problem("working directory", "no longer exists; cd to one that does")]) from None


def command() -> int:
    """Entry point of `areal-like` and `python -m launcher`. Exits with os._exit, which saves tens of milliseconds,
    except after a sweep, whose workers must end."""
    signal.signal(signal.SIGPIPE, _exit_quietly)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the parent; in this order each gets its own file descriptor back
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    try:
        code = main()
    except KeyboardInterrupt:
        code = INTERRUPTED
    if not {"--multirun", "-m"} & set(sys.argv):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):  # already reported
                stream.flush()
        os._exit(code)
    return code


def _exit_quietly(*_: object) -> None:
    """Handler of SIGPIPE: `| head` ends a command quietly, with its cleanup."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(FAILED)


def _dispatch(arguments: Arguments) -> int:
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
    if arguments.command == "audit":
        from launcher.commands.audit import audit_run

        assert arguments.operand is not None
        return audit_run(arguments.operand, arguments.overrides)
    if arguments.command == "chat":
        from launcher.commands.chat import chat

        assert arguments.operand is not None
        return chat(arguments.operand, arguments.overrides)
    if arguments.command == EVAL:
        from launcher.commands.evaluate import WITH, model_evaluation, show_evaluation

        if arguments.operand is not None and arguments.config is None:
            return show_evaluation(arguments.operand, arguments.overrides)
        if arguments.config is not None and any(word.startswith(WITH) for word in arguments.overrides):
            from launcher.commands.compare_models import compare_models

            return compare_models(arguments)
        arguments = model_evaluation(arguments)
    if arguments.command == "rewards":
        from launcher.commands.rewards import rewards

        assert arguments.operand is not None
        return rewards(arguments.operand, arguments.reward, arguments.overrides)
    if arguments.config is None and any(word.startswith("resume=") for word in arguments.overrides):
        from launcher.runs.resume import resume_arguments

        arguments = resume_arguments(arguments)
    if arguments.schema is not None and arguments.config is None:
        from launcher.commands.schema import show_schema

        return show_schema(arguments.schema_class)
    if arguments.config is None:
        message = "name a file or a shipped experiment (--config grpo.yaml), or a run to continue (resume=RUN)"
        raise ConfigError([Problem("--config is missing", message)])
    if arguments.multirun and arguments.command in ONE_CONFIGURATION:
        message = f"{ONE_CONFIGURATION[arguments.command]} of one configuration; remove --multirun"
        raise ConfigError([Problem(arguments.command, message, "command line")])
    if arguments.multirun:
        from launcher.commands.sweep import sweep_command

        return sweep_command(arguments)
    return _run_one(arguments)


def _run_one(arguments: Arguments) -> int:
    from areal_like.config.load import load
    from launcher.runs.dependent_overrides import recorded_references

    assert arguments.config is not None
    overrides, target = arguments.overrides, None
    if arguments.for_machine is not None or arguments.model_config is not None:
        from launcher.plan.target_machine import TargetMachine

        target = TargetMachine(arguments.for_machine, arguments.model_config)
        overrides = [*target.overrides, *overrides]
    if arguments.command == "try":
        overrides = [*overrides, *OWN_TRIAL]
    known = target.machine if target is not None else None
    loaded = load(arguments.config, overrides, arguments.schema_class, known, recorded_references(arguments.config))
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
    if arguments.command == "try":
        from launcher.commands.try_rows import check_experiment, try_answers

        check_experiment(loaded)
        if arguments.answers is not None and arguments.dry_run is None:
            return try_answers(loaded, Path(arguments.answers))
    if arguments.command == EVAL:
        from launcher.commands.evaluate import check_answers

        check_answers(EVAL, loaded)
    if arguments.command == "overlap" and arguments.dry_run is None:
        from launcher.commands.overlap import show_overlap

        return show_overlap(loaded, arguments.ngram)
    from launcher.commands.run import dry_run, start
    from launcher.plan.purpose import Purpose

    purpose = Purpose(arguments.command) if arguments.command in tuple(Purpose) else Purpose.RUN
    if arguments.dry_run is not None:
        host = target.host(loaded.config) if target is not None else None
        return dry_run(loaded, arguments.dry_run, arguments.replace, purpose, host)
    return start(loaded, arguments.replace, purpose)
