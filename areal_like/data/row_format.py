"""Row formats by dataset type, and conversion of other formats to them.

`rl` requires a `prompt`, `sft` a `prompt` and an `answer`, `rw` a `prompt`, `chosen` and `rejected`. A prompt is a text
or a list of messages; an answer is a text, or messages that continue the prompt. A whole conversation may be in
`messages` (`rl`, `sft`), or in both of `chosen` and `rejected` without a prompt.
"""

from typing import Any

from areal_like.data.chat_template import ASSISTANT, Message
from areal_like.data.choices import Choices, answer_in
from areal_like.data.prompt_format import PromptFormat, is_whole, value_in
from areal_like.data.tasks import Row

REQUIRED_FIELDS = {"rl": ("prompt",), "sft": ("prompt", "answer"), "rw": ("prompt", "chosen", "rejected")}
"""Dataset type -> required fields of a row."""


class RowFormat:
    """The settings of a dataset about its rows; `key` is that of the dataset, such as `train_dataset`."""

    def __init__(self, dataset: Any, key: str) -> None:
        self.type, self.key, self._fields = dataset.type, key, dataset.fields
        self._require = dataset.require
        self._choices, self._answer_from = dataset.multiple_choice, dataset.answer_from
        self._prompt = PromptFormat(dataset, key, REQUIRED_FIELDS[self.type][1:])

    def __call__(self, raw: Any) -> Row:
        """The converted row; raises ValueError if it is invalid."""
        required = REQUIRED_FIELDS[self.type]
        if not isinstance(raw, dict):
            raise ValueError(f"is {type(raw).__name__}; a row is a dict with {' and '.join(required)}")
        self._check_required(raw)
        row = self._renamed(dict(raw))
        if "messages" in row and self.type != "rw":
            row = self._of_messages(row)
        elif self.type == "rw" and "prompt" not in row and "chosen" in row:
            row = {"prompt": "" if isinstance(row["chosen"], str) else [], **row}
        self._prompt(row, self._with_answer(row))
        for name in required:
            _check(row, name, self.key)
        if self.type == "sft" and row["answer"] == "":
            raise ValueError("'answer' is empty: there is nothing to learn")
        return row

    def _check_required(self, row: Row) -> None:
        """Columns have the names that `fields` gives them; others are those of the file."""
        given = {**row, **{name: self._field(row, name) for name in self._require if name in self._fields}}
        for name, wanted in self._require.items():
            if name in given and str(given[name]) != wanted:
                raise ValueError(
                    f"{name!r} is {given[name]!r:.60}, and its reward is for {wanted!r} alone ({self.key}.require); "
                    f"leave such rows out of the data, or train on them with a reward of theirs"
                )

    def _with_answer(self, row: Row) -> Choices | None:
        """Changes the answer to what it is compared with, and returns the choices."""
        if self._choices is None:
            if self._answer_from is not None and "answer" in row:
                row["answer"] = answer_in(row["answer"], self._answer_from)
            return None
        choices = Choices.of(value_in(row, self._choices, f"{self.key}.multiple_choice"), self._choices)
        row["choices"] = list(choices.texts)
        if "answer" in row:
            row["answer"] = choices.letter(row["answer"], self._answer_from)
        return choices

    def _renamed(self, row: Row) -> Row:
        if not self._fields:
            return row
        renamed = {name: self._field(row, name) for name in self._fields}
        return {name: value for name, value in row.items() if name not in self._fields.values()} | renamed

    def _field(self, row: Row, name: str) -> Any:
        return value_in(row, self._fields[name], f"{self.key}.fields.{name}")

    def _of_messages(self, row: Row) -> Row:
        """The last answer becomes the answer, the messages before it the prompt."""
        messages = row["messages"] = _messages(row, "messages")
        last = max((number for number, each in enumerate(messages) if each["role"] == ASSISTANT), default=None)
        if self.type == "sft":
            if last is None:
                raise ValueError("'messages' has no message of the assistant: there is nothing to learn")
            return {**row, "prompt": messages[:last], "answer": messages[last : last + 1]}
        if "prompt" in row:
            return row
        if last != len(messages) - 1:
            return {**row, "prompt": messages}
        return {**row, "prompt": messages[:-1], "answer": row.get("answer", messages[-1].get("content"))}


def is_chat(row: Row, kind: str) -> bool:
    """Whether the row needs a chat template."""
    return any(not isinstance(row[name], str) for name in REQUIRED_FIELDS[kind])


def conversation(prompt: str | list[Message], answer: str | list[Message]) -> list[Message]:
    """Of a prompt and an answer of which at least one is messages. An answer whose first message is not the assistant's
    is the whole conversation."""
    if not isinstance(answer, str) and is_whole(answer):
        return answer
    before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return [*before, *([{"role": ASSISTANT, "content": answer}] if isinstance(answer, str) else answer)]


def _check(row: Row, name: str, key: str) -> None:
    if name not in row:
        raise ValueError(f"{name!r} is missing; it has {', '.join(map(str, row))} (map field names with {key}.fields)")
    if not isinstance(row[name], str | list):
        raise ValueError(f"{name!r} is {row[name]!r:.60}, neither a text nor a list of messages")
    if isinstance(row[name], list) and (row[name] or name != "prompt"):
        row[name] = _messages(row, name)


def _messages(row: Row, name: str) -> list[Message]:
    """Without null fields: Arrow adds every field of any message to all."""
    messages = row[name]
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"{name!r} is {messages!r:.60}, not a list of messages")
    for index, each in enumerate(messages):
        if not isinstance(each, dict) or not isinstance(each.get("role"), str):
            raise ValueError(f"{name!r} is {messages!r:.60}: item {index} is not a message such as {EXAMPLE}")
    return [{key: value for key, value in each.items() if value is not None} for each in messages]


EXAMPLE = {"role": "user", "content": "..."}
