"""`chat RUN [step=N]`: the model of a run answers prompts from stdin, one per line, greedily."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from areal_like.config.control_characters import escape_controls
from areal_like.config.problems import ConfigError, Problem
from areal_like.process.abandoned_memory import remove_abandoned_memory
from launcher.checks.packages import missing_packages, package_problems
from launcher.runs.checkpoint_reader import read_checkpoint
from launcher.runs.named_run import STEP, find_run, last_value, unknown_words
from launcher.runs.run_files import read_facts

MAX_NEW_TOKENS = 256
REWARD_MODEL = "reward_model"


def chat(name: str, words: list[str]) -> int:
    """Prints the greedy answer to each prompt; returns 1 where a prompt failed."""
    remove_abandoned_memory()
    problems = package_problems(missing_packages())
    problems += unknown_words(words, (STEP,), "chat takes only step=N")
    if problems:
        raise ConfigError(problems)
    directory = find_run(name, words, "chat")
    if read_facts(directory).get("experiment") == REWARD_MODEL:
        use = f"reward.name=model +reward.args.path={directory}"
        raise ConfigError(
            [Problem("chat", f"{directory} is a reward model, which generates no text; use it with {use}")]
        )
    model = read_checkpoint(directory, last_value(words, STEP), lambda folder: _ChatModel(directory, folder), _warn)
    if sys.stdin.isatty():
        print(f"{model.folder}: enter a prompt, Ctrl-D ends", flush=True)
    failed = False
    for prompt in _prompts():
        try:
            answer = model.answer(prompt)
            print(escape_controls(answer) if sys.stdout.isatty() else answer, flush=True)
        except ValueError as error:
            _warn(str(error))
            failed = True
    return int(failed)


def _warn(text: str) -> None:
    print(escape_controls(text), file=sys.stderr, flush=True)


def _prompts() -> Iterator[str]:
    if not sys.stdin.isatty():
        yield from (line.rstrip("\n") for line in sys.stdin if line.strip())
        return
    import readline  # noqa: F401  (input() edits lines with it)

    while True:
        try:
            prompt = input("> ")
        except EOFError:
            print()
            return
        if prompt.strip():
            yield prompt


class _ChatModel:
    """A checkpoint, loaded into this process."""

    folder = Path()

    def __init__(self, directory: Path, folder: Path) -> None:
        from areal_like.data.data_record import has_messages
        from areal_like.data.tokenizer import TextTokenizer
        from areal_like.process.run import open_run
        from areal_like.serving.engines.embedded.core.load_model import load_engine
        from areal_like.serving.requests import Sampling

        self.folder = folder
        config: Any = open_run(directory, own_class=False).config
        generation = getattr(config, "gconfig", None)
        trained = config.actor if hasattr(config, "actor") else config.model
        self._tokenizer = TextTokenizer(folder, config.chat_template_args)
        self._is_chat = has_messages(directory)
        here = replace(config.embedded, model_path=str(folder), device="auto", dtype=trained.dtype)
        self._engine = load_engine(here, folder, trained.trust_remote_code)
        self._sampling = Sampling(
            greedy=True,
            max_new_tokens=generation.max_new_tokens if generation else MAX_NEW_TOKENS,
            stop_token_ids=tuple(generation.stop_token_ids or ()) if generation else (),
        )

    def answer(self, prompt: str) -> str:
        from areal_like.serving.requests import GroupRequest

        messages = [{"role": "user", "content": prompt}] if self._is_chat else prompt
        ids = tuple(self._tokenizer.encode_prompt(messages))
        [finished] = self._engine.generate([GroupRequest("chat", ids, sampling=self._sampling)])
        return self._tokenizer.decode(finished.samples[0].token_ids)
