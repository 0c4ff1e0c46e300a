"""Makes the prompt of a row out of its columns: choices with letters, a template, a system message."""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from areal_like.config.prompt_template import parse_template
from areal_like.data.chat_template import ASSISTANT, SYSTEM, USER, Message
from areal_like.data.choices import Choices
from areal_like.data.tasks import Row

CHOICES = "choices"
"""What stands in a template for the lines of all choices."""


class PromptFormat:
    """The settings of a dataset about its prompts; `key` is that of the dataset, such as `train_dataset`. `answers`:
    fields that may hold whole conversations, which have prompts of their own."""

    def __init__(self, dataset: Any, key: str, answers: Sequence[str]) -> None:
        self._answers = answers
        self._key, self._template, self._system = key, dataset.prompt_template, dataset.system_prompt
        self._remove, self._as_chat = tuple(dataset.remove_text), dataset.as_chat or dataset.system_prompt is not None

    def __call__(self, row: Row, choices: Choices | None) -> None:
        """Changes the prompt of the row, and those in its answers."""
        for name in self._answers:
            if is_whole(row.get(name)):
                row[name] = self._with_prompt(row[name], name)
        prompt: Any = row.get("prompt")
        if isinstance(prompt, str):
            for text in self._remove:
                prompt = prompt.replace(text, "")
            row["prompt"] = prompt
        if self._template is not None:
            row["prompt"] = self._filled(row, choices)
        elif choices is not None and isinstance(prompt, str):
            row["prompt"] = f"{prompt}\n{choices.lines}"
        elif choices is not None and isinstance(prompt, list):
            row["prompt"] = self._with_choices(prompt, choices)
        if self._as_chat and row.get("prompt") and isinstance(row["prompt"], str):
            row["prompt"] = [{"role": USER, "content": row["prompt"]}]
        if self._system is not None and isinstance(row.get("prompt"), list):
            row["prompt"] = self._with_system(row["prompt"])

    def _with_prompt(self, conversation: list[Message], name: str) -> list[Message]:
        """Its prompt is no column, so nothing else than a system message can be made for it."""
        for key, value in (("prompt_template", self._template), ("remove_text", self._remove)):
            if value:
                whole = f"{name!r} is a whole conversation, whose prompt {self._key}.{key} cannot change"
                raise ValueError(f"{whole}; leave it out, or give the prompt as a text and the answer without it")
        return conversation if self._system is None else self._with_system(conversation)

    def _filled(self, row: Row, choices: Choices | None) -> str:
        values = {CHOICES: choices.lines} if choices is not None else {}
        return "".join(
            part.text + ("" if part.column is None else self._text({**row, **values}, part.column))
            for part in self._parts
        )

    def _text(self, row: Row, column: str) -> str:
        """A column as a text; other values as JSON."""
        value = value_in(row, column, f"{self._key}.prompt_template")
        if column == "prompt" and not isinstance(value, str):
            message = "'prompt' is a list of messages, which no template can contain"
            raise ValueError(f"{message}; leave {self._key}.prompt_template out")
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def _with_choices(self, messages: list[Message], choices: Choices) -> list[Message]:
        """They follow the last question."""
        for place, each in reversed([*enumerate(messages)]):
            if isinstance(each, dict) and each.get("role") == USER and isinstance(each.get("content"), str):
                asked = {**each, "content": f"{each['content']}\n{choices.lines}"}
                return [*messages[:place], asked, *messages[place + 1 :]]
        raise ValueError(
            f"'prompt' is {messages!r:.60}, without a message of the user that is a text, which choices could follow "
            f"({self._key}.multiple_choice)"
        )

    def _with_system(self, messages: list[Message]) -> list[Message]:
        is_complete = not messages or not isinstance(messages[0], dict) or messages[0].get("role") == SYSTEM
        return messages if is_complete else [{"role": SYSTEM, "content": self._system}, *messages]

    @cached_property
    def _parts(self) -> Any:
        return parse_template(self._template)


def is_whole(answer: Any) -> bool:
    """Whether it is messages of which the first is not the assistant's: they do not continue a prompt."""
    first = answer[0] if isinstance(answer, list) and answer else None
    return isinstance(first, dict) and first.get("role", ASSISTANT) != ASSISTANT


def value_in(row: Row, path: str, key: str) -> Any:
    """A column by its name, or a nested value by its path: `reward_model.ground_truth`, `solutions.0`."""
    if path in row:
        return row[path]
    value: Any = row
    for name in path.split("."):
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            raise ValueError(f"{path!r} ({key}) is missing; it has {', '.join(map(str, row))}")
    return value
