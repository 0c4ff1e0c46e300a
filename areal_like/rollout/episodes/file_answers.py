"""Answers from a file in place of a model, for `try`."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from areal_like.config.problems import ConfigError, Problem
from areal_like.data.checked_rows import CheckedRows
from areal_like.data.tokenizer import TextTokenizer
from areal_like.rollout.answer_lines import read_lines
from areal_like.rollout.episodes.episode import current_sample
from areal_like.rollout.episodes.generation_client import GenerationError, LeaseRoute
from areal_like.rollout.episodes.try_rows import NUM_ROWS
from areal_like.serving.partial_sample import ABORT, LENGTH, STOP


class FileAnswers:
    """Answers from JSON lines with `completion` and `prompt`, the text of the row's prompt, or `row`, its number. In a
    workflow of several turns a completion is the list of a conversation's answers."""

    def __init__(self, file: Path, tokenizer: TextTokenizer, rows: CheckedRows) -> None:
        self._tokenizer = tokenizer
        self._by_row: dict[str, list[list[str]]] = {}
        self._turns: Counter[tuple[str, int]] = Counter()
        by_prompt: dict[str, int] = {}
        lines = _read(file)
        wanted = {_text(line["prompt"]) for _, line in lines if "row" not in line}
        for number in range(len(rows)) if wanted else ():
            prompt = _text(rows.rows[number].get("prompt"))
            if prompt in wanted:
                by_prompt.setdefault(prompt, number)
                if len(by_prompt) == len(wanted):
                    break
        for place, line in lines:
            row = line["row"] if "row" in line else by_prompt.get(_text(line["prompt"]))
            if type(row) is not int or not 0 <= row < len(rows):
                reason = f"no row of {rows.source} has this prompt" if row is None else f"there is no row {row!r}"
                raise ConfigError([Problem(place, f"{reason}; `prompt` is that of a row, or `row` its number")])
            completion = line["completion"]
            self._by_row.setdefault(str(row), []).append([completion] if isinstance(completion, str) else completion)

    @property
    def rows(self) -> dict[int, int]:
        """With their number of answers."""
        return {int(row): len(self._by_row[row]) for row in list(self._by_row)[:NUM_ROWS]}

    async def generate(self, route: LeaseRoute, group: dict[str, Any]) -> list[dict[str, Any]]:
        limit, conversations = group["sampling"]["max_new_tokens"], self._by_row[route.lease]
        if (number := current_sample.get()) is None:
            if any(len(each) > 1 for each in conversations):
                message = "`completion` is a list of several turns, and the workflow asks for one answer"
                raise GenerationError(f"row {route.lease}: {message}")
            return [self._sample(texts[0], limit) for texts in conversations]
        turn = self._turns[route.lease, number]
        self._turns[route.lease, number] += 1
        if turn >= len(conversations[number]):
            message = f"the workflow asks for answer {turn + 1} of conversation {number + 1}, and the file has {turn}"
            raise GenerationError(f"row {route.lease}: {message}; `completion` is the list of its answers")
        return [self._sample(conversations[number][turn], limit)]

    def _sample(self, text: str, limit: int) -> dict[str, Any]:
        end = self._tokenizer.eos_id
        ids = [*self._tokenizer.encode(text, special=False), *([] if end is None else [end])]
        whole = ABORT if end is None else STOP  # with `stop` its last token would be taken for that of the end
        finish, ids = (whole, ids) if len(ids) <= limit else (LENGTH, ids[:limit])
        return {"token_ids": ids, "logprobs": [0.0] * len(ids), "versions": [0] * len(ids), "finish": finish}


def _read(file: Path) -> list[tuple[str, dict[str, Any]]]:
    lines = list(read_lines(file))
    for place, line in lines:
        is_known = isinstance(line, dict) and bool({"row", "prompt"} & set(line))
        if not is_known or not _is_completion(line.get("completion")):
            message = "is an answer without a text `completion`, or a list of texts, and `prompt` or `row`"
            raise ConfigError([Problem(place, message)])
    return lines


def _is_completion(value: Any) -> bool:
    texts = value if isinstance(value, list) else [value]
    return bool(texts) and all(isinstance(text, str) for text in texts)


def _text(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True)
