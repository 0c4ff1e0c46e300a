"""A training sample per step for people to read, with `log.data`: a process writes it, the launcher shows it."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from areal_like.data.sampled_text import SampledText
from areal_like.observe.text import cut_middle
from areal_like.process.run import Run

SHOWN = "shown.jsonl"
"""In the folder of rollouts."""
HEAD, TAIL = 1200, 600
"""Characters of a prompt or an answer that are shown."""

log = logging.getLogger(__name__)


class ShownSamples:
    """Writes them if the run shows any."""

    def __init__(self, run: Run) -> None:
        self._path = run.rollouts / SHOWN
        self._text = SampledText(run.config.tokenizer_path, run.cwd) if run.config.log.data else None

    @property
    def is_wanted(self) -> bool:
        return self._text is not None

    def write(self, step: int, prompt: Sequence[int], answer: Sequence[int], reward: float | None = None) -> None:
        """`step` counts from 1, as in metrics. `reward`: None in supervised training, or if it failed."""
        if self._text is None:
            return
        line = {"step": step, "reward": reward, "prompt": self._text(prompt), "answer": self._text(answer)}
        log.info("%s", shown_text(line))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(orjson.dumps(line) + b"\n")


def shown_text(line: Mapping[str, Any]) -> str:
    """Several lines of text."""
    reward = "" if line["reward"] is None else f", reward {line['reward']:.4g}"
    parts = (f"  {name}: {_indented(cut_middle(line[name], HEAD, TAIL))}" for name in ("prompt", "answer"))
    return "\n".join([f"a sample of step {line['step']}{reward}", *parts])


def _indented(text: str) -> str:
    return text.strip("\n").replace("\n", "\n    ")
