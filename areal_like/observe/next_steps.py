"""Suggested commands after a run: use the model, resume, change a setting."""

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from areal_like.config.experiment import GRPOConfig, SFTConfig
from areal_like.config.names import ALIASES
from areal_like.process.checkpoint_files import RESUME, complete_checkpoints
from areal_like.process.run import COMMAND, Run

PROGRAM = "python -m launcher"
RUN_SPECIFIC = ("trial_name", "resume", "resume_step")
"""Keys of one run, which the command for another run must not repeat."""
OWN_TASK = "your own task: docs/own-task.md"


def model_uses(run: Run, model: Path) -> list[tuple[str, str]]:
    """How to use the trained model: pairs of a heading (empty: as above) and a line."""
    name = shlex.quote(shown_path(run.directory))
    if run.config.train_dataset.fake is not None:
        return []
    if isinstance(run.config, GRPOConfig | SFTConfig):
        return [("chat", f"{PROGRAM} chat {name}")]
    return [
        ("use", f"{PROGRAM} --config grpo.yaml reward.name=model +reward.args.path={name}"),
        ("", f'transformers.AutoModelForSequenceClassification.from_pretrained("{shown_path(model)}")'),
    ]


def next_steps(run: Run, exit_code: int, steps: int) -> list[tuple[str, str]]:
    """Suggested commands, in the same form."""
    name = shlex.quote(shown_path(run.directory))
    rows: list[tuple[str, str]] = []
    if exit_code and any((folder / RESUME).is_dir() for _, folder in complete_checkpoints(run.checkpoints)):
        rows.append(("resume", f"{PROGRAM} resume={name}"))
    if exit_code:
        return rows
    if run.config.train_dataset.fake is not None:
        return rows
    if run.config.total_train_steps == 0:
        return [*rows, ("compare", f"{PROGRAM} eval {name} with=RUN")]
    if run.config.bench:
        return [*rows, ("train", _with(base_command(run), "bench", None))]
    changes = _changes(run, steps)
    width = max(len(command) for command, _ in changes)
    lines = [*(f"{command:<{width}}   # {why}" for command, why in changes), OWN_TASK]
    return [*rows, *zip(("next", *[""] * len(lines)), lines, strict=False)]


def _changes(run: Run, steps: int) -> list[tuple[str, str]]:
    config: Any = run.config
    command = base_command(run)
    model = "actor" if isinstance(config, GRPOConfig) else "model"
    engine = getattr(config, model)
    rate = engine.optimizer.lr if engine.optimizer is not None else 0.0
    rows = [(_with(command, f"{model}.lr", short_number(rate / 3)), "a lower learning rate")] if rate > 0 else []
    rows.append((f"{_with(command, 'seed', None)} --multirun seed=1,2,3", "three seeds, compared in a table"))
    if isinstance(config, GRPOConfig):
        if run.is_synchronous:
            rows.append((_with(command, "max_head_offpolicyness", "2"), "asynchronous: generation during training"))
        else:
            rows.append((_with(command, "max_head_offpolicyness", "0"), "on-policy: slower, bit-for-bit reproducible"))
    elif (config.total_train_steps or steps + 1) > steps and not config.total_train_n_seqs:
        epochs = config.total_train_epochs  # which ended the run
        rows.append((_with(command, "total_train_epochs", str(2 * epochs)), "twice as many epochs"))
    else:
        rows.append((_with(command, "total_steps", str(2 * max(1, steps))), "twice as many steps"))
    return rows


def base_command(run: Run) -> list[str]:
    """The command that started a run, with the overrides of later resumes and without the keys of that one run."""
    base, later = [*PROGRAM.split(), "--config", f"{run.experiment}.yaml"], []
    for words in commands(run):
        if _starts_another(words, run):
            base = words
            break
        later.append(words)
    for words in reversed(later):
        changes = [word for word in words if "=" in word and not word.startswith("--")]
        changed = {_key(word) for word in changes}
        base = [*(word for word in base if "=" not in word or _key(word) not in changed), *changes]
    return [word for word in base if word.partition("=")[0] not in (*RUN_SPECIFIC, "--replace", "--multirun")]


def _key(word: str) -> str:
    """Full name of the key that an override sets."""
    name = word.partition("=")[0].lstrip("+~")
    return ALIASES.get(name, name)


def commands(run: Run) -> Iterator[list[str]]:
    """Commands of every start of a run, newest first."""
    path = run.directory / COMMAND
    before = {int(one.stem.rpartition("-")[2]): one for one in run.directory.glob(f"{path.stem}.until-attempt-*.txt")}
    for place in (path, *(before[attempt] for attempt in sorted(before, reverse=True))):
        if place.is_file():
            yield shlex.split(place.read_text(encoding="utf-8"))


def _starts_another(words: list[str], run: Run) -> bool:
    """Whether a command started a new run: its file is not in the run's directory, which would resume it."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--config" or word.startswith("--config="):
            file = run.cwd / (word.partition("=")[2] or following)
            return file.parent.resolve() != run.directory.resolve()
    return False


def short_number(value: float) -> str:
    """1.0e-04 -> 1e-4"""
    digits, _, power = f"{value:.0e}".partition("e")
    return f"{digits}e{int(power)}"


def _with(words: list[str], key: str, value: str | None) -> str:
    """The command with one key set to another value, or removed."""
    names = {key, ALIASES.get(key, key)}
    kept = [word for word in words if "=" not in word or word.partition("=")[0] not in names]
    return shlex.join(kept if value is None else [*kept, f"{key}={value}"])


def shown_path(path: Path) -> str:
    """The path relative to the current folder, if it is below that."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
