"""What a row must hold, by the type of its dataset; and other forms of it made into that.

`rl` needs a `prompt`, `sft` a `prompt` and an `answer`, `rw` a `prompt`, `chosen` and `rejected`. A prompt is a text,
or a list of messages; an answer is a text, or messages that go on from the prompt. A conversation as a whole may stand
in `messages` (`rl`, `sft`), or in both of `chosen` and `rejected` without a prompt.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from areal_like.data.chat_template import ASSISTANT, Message
from areal_like.data.tasks import Row

REQUIRED_FIELDS = {"rl": ("prompt",), "sft": ("prompt", "answer"), "rw": ("prompt", "chosen", "rejected")}
"""Type of a dataset -> what each of its rows has."""


class RowFormat(NamedTuple):
    """What a dataset's keys say of its rows."""

    type: str
    fields: Mapping[str, str]
    as_chat: bool
    key: str
    """Where that stands, such as `train_dataset`."""

    def __call__(self, given: Any) -> Row:
        """The row as it is used from here on; ValueError says what is wrong with it."""
        wanted = REQUIRED_FIELDS[self.type]
        if not isinstance(given, dict):
            raise ValueError(f"is {type(given).__name__}; a row is a dict with {' and '.join(wanted)}")
        row = self._renamed(dict(given))
        if "messages" in row and self.type != "rw":
            row = self._of_messages(row)
        elif self.type == "rw" and "prompt" not in row and "chosen" in row:
            row = {"prompt": "" if isinstance(row["chosen"], str) else [], **row}
        for name in wanted:
            _check(row, name, self.key)
        if self.type == "sft" and row["answer"] == "":
            raise ValueError("'answer' is empty, so that there is nothing to learn from")
        if self.as_chat and row["prompt"] and isinstance(row["prompt"], str):
            row["prompt"] = [{"role": "user", "content": row["prompt"]}]
        return row

    def _renamed(self, row: Row) -> Row:
        if not self.fields:
            return row
        said = {name: _at(row, theirs, f"{self.key}.fields.{name}") for name, theirs in self.fields.items()}
        return {name: value for name, value in row.items() if name not in self.fields.values()} | said

    def _of_messages(self, row: Row) -> Row:
        """The last answer is the answer, and what came before it the prompt."""
        messages = row["messages"] = _messages(row, "messages")
        last = max((number for number, each in enumerate(messages) if each["role"] == ASSISTANT), default=None)
        if self.type == "sft":
            if last is None:
                raise ValueError("'messages' has none of the assistant, so that there is nothing to learn from")
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
    """Of a prompt and an answer of which one at least is messages. An answer that begins with what is not of the
    assistant is the whole conversation."""
    if not isinstance(answer, str) and answer[0]["role"] != ASSISTANT:
        return answer
    before = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return [*before, *([{"role": ASSISTANT, "content": answer}] if isinstance(answer, str) else answer)]


def _check(row: Row, name: str, key: str) -> None:
    if name not in row:
        raise ValueError(
            f"{name!r} is missing; it has {', '.join(map(str, row))} ({key}.fields says what is called how)"
        )
    if not isinstance(row[name], str | list):
        raise ValueError(f"{name!r} is {row[name]!r:.60}, neither a text nor a list of messages")
    if isinstance(row[name], list) and (row[name] or name != "prompt"):
        row[name] = _messages(row, name)


def _messages(row: Row, name: str) -> list[Message]:
    """Of Arrow's rows, each of which has all that any has, without what is null."""
    said = row[name]
    if not isinstance(said, list) or not said:
        raise ValueError(f"{name!r} is {said!r:.60}, not a list of messages")
    for number, each in enumerate(said):
        if not isinstance(each, dict) or not isinstance(each.get("role"), str):
            raise ValueError(f"{name!r} is {said!r:.60}: item {number} is no message, such as {EXAMPLE}")
    return [{key: value for key, value in each.items() if value is not None} for each in said]


EXAMPLE = {"role": "user", "content": "..."}


def _at(row: Row, path: str, key: str) -> Any:
    """A field by its name, or by the names on the way to it: `reward_model.ground_truth`."""
    if path in row:
        return row[path]
    value: Any = row
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            raise ValueError(f"{path!r} ({key}) is missing; it has {', '.join(map(str, row))}")
        value = value[name]
    return value
