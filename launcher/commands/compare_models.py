"""`eval [MODEL] with=MODEL --config FILE`: evaluates two models one after the other, then compares them."""

import sys
from dataclasses import replace
from pathlib import Path

from areal_like.api import run_command
from areal_like.config.load import load
from areal_like.config.problems import ConfigError, Problem
from areal_like.process.exit_codes import DONE
from areal_like.rollout.evaluation.answer_folders import evaluated_names, saved_evaluation
from launcher.arguments import EVAL, Arguments
from launcher.commands.evaluate import WITH, check_answers, model_evaluation
from launcher.commands.run import dry_run, refuse
from launcher.plan.build import build_plan
from launcher.runs.named_run import STEP, last_value, name_and_step
from launcher.runs.score_tables import comparison
from launcher.terminal import write_line

AUTO, TRIAL = "auto", "trial_name"
SIDES = ("first", "second")


def compare_models(arguments: Arguments) -> int:
    """Each evaluation is a command and a run of its own. With a `trial_name` each goes on where it was stopped; with
    `auto` a repeated command begins both anew. Both are checked before the first one starts."""
    if arguments.explain is not None or arguments.cfg is not None:
        raise ConfigError([Problem("with", "--explain and --cfg are of one configuration; remove with=")])
    both = [_side(arguments, side) for side in SIDES]
    for each in both:
        assert each.config is not None
        loaded = load(each.config, model_evaluation(each).overrides, each.schema_class)
        check_answers(EVAL, loaded)
        if arguments.dry_run is not None:
            dry_run(loaded, arguments.dry_run, arguments.replace, words=_words(arguments))
        else:
            refuse(build_plan(loaded, replace_existing=arguments.replace).problems)
    if arguments.dry_run is not None:
        return DONE
    directories: list[Path] = []
    for side, each in zip(SIDES, both, strict=True):
        ended = run_command(_words(each))
        if ended.exit_code != DONE or ended.directory is None:
            write_line(f"the {side} evaluation has not ended well; nothing is compared", sys.stderr)
            return ended.exit_code
        directories.append(ended.directory)
    first, second = (saved_evaluation(directory, None) for directory in directories)
    print("\n".join(["", *comparison(first, second, evaluated_names(directories[0]))]))
    return DONE


def _side(arguments: Arguments, side: str) -> Arguments:
    """The arguments that evaluate one of the two, in a trial whose name ends with `side` if it has one. `step=` is that
    of the first, `with=RUN@N` that of the second."""
    overrides = [word for word in arguments.overrides if not word.startswith(WITH)]
    model = arguments.operand
    if side != SIDES[0]:
        model, step = name_and_step(last_value(arguments.overrides, WITH) or "", overrides)
        overrides = [word for word in overrides if not word.startswith(STEP)]
        overrides += [] if step is None else [f"{STEP}{step}"]
    each = replace(arguments, overrides=overrides, operand=model)
    assert each.config is not None
    trial = load(each.config, model_evaluation(each).overrides, each.schema_class).get(TRIAL)
    return each if trial == AUTO else replace(each, overrides=[*overrides, f"{TRIAL}={trial}-{side}"])


def _words(each: Arguments) -> list[str]:
    model = [each.operand] if each.operand is not None else []
    schema = ["--schema", each.schema_class] if each.schema_class else []
    flags = ["--replace"] if each.replace else []
    return [EVAL, *model, "--config", str(each.config), *schema, *flags, *each.overrides]
