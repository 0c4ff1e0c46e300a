"""`checkpoints/best`: a link to the checkpoint with the best value of a metric, with a model card."""

import json
import math
import shlex
from collections.abc import Container, Iterable
from functools import partial
from typing import Any, NamedTuple

from areal_like.config.allocation.grammar import parse_server
from areal_like.config.allocation.models import num_evaluators
from areal_like.config.benchmarks import best_benchmark
from areal_like.config.dotted_path import value_of
from areal_like.config.suggest import nearest
from areal_like.process.atomic_file import write_atomic
from areal_like.process.checkpoint_files import complete_checkpoints
from areal_like.process.run import COMMAND, Run
from areal_like.rollout.sampling import EFFORT
from launcher.runs.engine_precision import FLAGS, precision_values

BEST, CARD = "best", "README.md"
EVALUATION = "eval/"
MAX_SHOWN_STEPS = 8


class Scored(NamedTuple):
    step: int
    value: float


def link_best(run: Run) -> str | None:
    """Renews the link; returns a line about it, None where there is no best one. The metrics of steps that a recovery
    took back are not in `metrics.jsonl` any more, so that they do not count."""
    from areal_like.observe.reading import JOINED, read_lines

    wanted, folders = run.config.saver.best, dict(complete_checkpoints(run.checkpoints))
    if wanted is None:
        return None
    lines = read_lines(run.directory / JOINED)
    best = best_of_steps(lines, wanted.metric, wanted.mode, folders)
    if best is None:
        return None
    link, half = run.checkpoints / BEST, run.checkpoints / f".{BEST}.half"
    try:
        write_atomic(folders[best.step] / CARD, model_card(run, best))
        half.unlink(missing_ok=True)
        half.symlink_to(folders[best.step].name)
        half.replace(link)
    except OSError as error:
        return f"saver.best: {link} could not be made: {error.strerror or error}"
    return f"best: {wanted.metric} {best.value:.4g} at step {best.step}, {link}"


def best_warning(run: Run) -> str | None:
    """A line for the end of a run: no evaluation has the metric, or steps that it was evaluated at have no checkpoint.
    None if there is none to say."""
    from areal_like.observe.reading import JOINED, read_lines

    wanted = run.config.saver.best
    if wanted is None:
        return None
    lines = list(read_lines(run.directory / JOINED))
    logged = {name for line in lines for name in line if name.startswith(EVALUATION)}
    if wanted.metric in logged:
        return _without_checkpoint(lines, wanted.metric, dict(complete_checkpoints(run.checkpoints)))
    if not logged:
        return None
    guess = nearest(wanted.metric, sorted(logged))
    hint = f"; did you mean {guess[0]}?" if guess else ""
    return f"warning: saver.best.metric={wanted.metric} was never logged, so that no checkpoint is the best{hint}"


def _without_checkpoint(lines: Iterable[dict[str, Any]], metric: str, steps: Container[int]) -> str | None:
    """The start of the run, which never has one, does not count."""
    evaluated = {line["step"] for line in lines if line.get(metric) is not None and line["step"] > 0}
    missing = sorted(step for step in evaluated if step not in steps)
    if not missing:
        return None
    shown = ", ".join(map(str, missing[:MAX_SHOWN_STEPS])) + (", ..." if len(missing) > MAX_SHOWN_STEPS else "")
    count = "1 evaluated step has" if len(missing) == 1 else f"{len(missing)} evaluated steps have"
    return f"warning: saver.best: {count} no checkpoint ({shown}) and cannot be the best"


def best_of_steps(lines: Iterable[dict[str, Any]], metric: str, mode: str, steps: Iterable[int]) -> Scored | None:
    """Of the steps with a checkpoint; of equal values the first."""
    known = set(steps)
    found = [
        Scored(line["step"], line[metric])
        for line in lines
        if line.get(metric) is not None and math.isfinite(line[metric]) and line["step"] in known
    ]
    sign = 1 if mode == "max" else -1
    return max(found, key=lambda each: (sign * each.value, -each.step), default=None)


def model_card(run: Run, best: Scored) -> str:
    config = run.config
    section = "actor" if hasattr(config, "actor") else "model"
    path = run.directory / COMMAND
    command = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    lines = [
        f"# {config.experiment_name}/{config.trial_name}, step {best.step}",
        "",
        f"- Trained from: `{getattr(config, section).path}`",
        f"- {config.saver.best.metric}: {best.value:.6g}, the {config.saver.best.mode}imum of the evaluated steps",
        f"- Trained by: `{command}`",
    ]
    if section == "actor":
        arguments = _template_arguments(config)
        if arguments:  # the embedded engine has no route for chats, and whoever asks it renders them
            text = json.dumps(arguments)
            lines.append(f"- Variables of the chat template (`chat_template_kwargs`): `{text}`")
        lines += ["", "Serve it:", "", f"    {_serve_command(run, arguments)}"]
    return "\n".join([*lines, ""])


def _serve_command(run: Run, template_arguments: dict[str, Any]) -> str:
    """In this precision, by this engine and with these variables its answers are those of the evaluation. The folder
    has the tokenizer of the run."""
    config, engine = run.config, _evaluating_engine(run.config)
    words = [f"actor.path={run.checkpoints / BEST}", f"actor.dtype={config.actor.dtype}"]
    words += [f"rollout.backend={engine or 'auto'}"]
    precision = precision_values(engine, partial(value_of, config)) if engine else ()
    for key, value in precision:  # flags have no declared type, and may be in the file already
        words.append(f"++{key}={_override_text(value)}" if f".{FLAGS}." in key else f"{key}={value}")
    words += [f"chat_template_args={_override_text(template_arguments)}"] if template_arguments else []
    return shlex.join(["python", "-m", "launcher", "--config", f"{run.experiment}.yaml", *words, "serve"])


def _evaluating_engine(config: Any) -> str:
    """That of the servers for evaluations alone, if there are any; empty if it was not known."""
    own = config.evaluator.backend if num_evaluators(config) else None
    return parse_server(own or "auto").backend or parse_server(config.rollout.backend).backend or ""


def _template_arguments(config: Any) -> dict[str, Any]:
    """The variables of the chat template in the evaluation that chose it."""
    own = best_benchmark(config)
    of_all = config.evaluator.gconfig.reasoning_effort
    effort = (own.gconfig.reasoning_effort if own is not None else None) or of_all
    return {**config.chat_template_args, **({EFFORT: effort} if effort else {})}


def _override_text(value: Any) -> str:
    """As the value of an override, whose names of a mapping are bare."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_override_text(each)}' for name, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_override_text, value))}]"
    if not isinstance(value, str):
        return json.dumps(value)
    from launcher.sweep.hydra_session import quoted

    return quoted(value)
