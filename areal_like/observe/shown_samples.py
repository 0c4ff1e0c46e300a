"""A training sample per step for people to read, with `log.data`: a process writes it, the launcher shows it."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from areal_like.data.sampled_text import SampledText
from areal_like.observe.text import cut_middle
from areal_like.process.ownership import Ownership
from areal_like.process.run import Run

SHOWN = "shown.jsonl"
"""In the folder of rollouts."""
HEAD, TAIL = 1200, 600
"""Characters of a prompt or an answer that are shown."""

log = logging.getLogger(__name__)


class ShownSamples:
    """Writes them if the run shows any."""

    def __init__(self, run: Run) -> None:
        self._path, self._ownership = run.rollouts / SHOWN, Ownership.of_process(run)
        self._text = SampledText(run.config.tokenizer_path, run.cwd) if run.config.log.data else None

    @property
    def is_wanted(self) -> bool:
        return self._text is not None

    def write(
        self,
        step: int,
        prompt: Sequence[int],
        answer: Sequence[int],
        reward: float | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """`step` counts from 1, as in metrics. `reward`: None in supervised training, or if it failed. `messages`: of a
        conversation."""
        if self._text is None:
            return
        line: dict[str, Any] = {
            "step": step,
            "reward": reward,
            "prompt": self._text(prompt),
            "answer": self._text(answer),
        }
        if messages is not None:
            line["messages"] = messages
        log.info("%s", shown_text(line))
        self._ownership.require()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(orjson.dumps(line) + b"\n")


def shown_text(line: Mapping[str, Any]) -> str:
    """Several lines of text: the messages of a conversation, or prompt and answer."""
    reward = "" if line["reward"] is None else f", reward {line['reward']:.4g}"
    named = [(name, line[name]) for name in ("prompt", "answer")]
    if line.get("messages"):
        named = [(each.get("role", "message"), _content(each)) for each in line["messages"]]
    parts = (f"  {name}: {_indented(cut_middle(text, HEAD, TAIL))}" for name, text in named)
    return "\n".join([f"a sample of step {line['step']}{reward}", *parts])


def _content(message: Mapping[str, Any]) -> str:
    """Calls of tools stand behind the text, as JSON."""
    content, calls = message.get("content"), message.get("tool_calls")
    texts = [content if isinstance(content, str) else orjson.dumps(content).decode() if content else ""]
    texts += [orjson.dumps(calls).decode()] if calls else []
    return "\n".join(text for text in texts if text)


def _indented(text: str) -> str:
    return text.strip("\n").replace("\n", "\n    ")
