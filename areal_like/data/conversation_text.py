"""The next prompt of a conversation: by a chat template, or plain text; and whether it continues what was sampled."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from areal_like.data.chat_template import ASSISTANT, Message
from areal_like.data.tokenizer import TextTokenizer

CHANNEL = re.compile(r"<\|channel\|>(\w++)[^<]*+<\|message\|>(.*?)(?=<\|(?:end|start|return|call|channel)\|>|$)", re.S)
"""A part of an answer of gpt-oss. Its name is never given back: a long one without a message would be tried at each
length."""
QUOTED = 40
"""Characters on each side of a rewritten place that a message quotes."""


class NextPrompt(NamedTuple):
    """`ids` continue the ids so far. Where the template rewrites these, `ids` are the whole prompt, and `rewritten`
    quotes the place."""

    ids: list[int]
    text: str = ""
    rewritten: str = ""


class ConversationText(Protocol):
    """How messages become token ids."""

    def first(self, messages: Sequence[Message]) -> NextPrompt: ...

    def following(self, messages: Sequence[Message], prompt: str, answer_ids: Sequence[int]) -> NextPrompt:
        """The prompt after an answer with these ids, the last message of the assistant. `prompt` is the text before
        it."""
        ...

    def answer(self, ids: Sequence[int]) -> Message:
        """The message of an answer with these ids, without a last stop token."""
        ...


def answer_message(text: str) -> Message:
    """As a template takes it: that of gpt-oss has thoughts in a field of their own, and refuses the marks of its
    channels. `text` is with special tokens."""
    parts = CHANNEL.findall(text)
    if not parts:
        return {"role": ASSISTANT, "content": text}
    content = "".join(part for name, part in parts if name == "final")
    thinking = "".join(part for name, part in parts if name != "final")
    return {"role": ASSISTANT, "content": content, **({"thinking": thinking} if thinking else {})}


class TemplateText:
    """Messages by the chat template. `tools` are the descriptions that the template shows to the model.

    Texts are compared, not ids: a text can be several sequences of ids, and the one that was sampled stays. Only what
    follows it is tokenized."""

    def __init__(self, tokenizer: TextTokenizer, tools: Any = None) -> None:
        self._tokenizer, self._tools = tokenizer, tools

    def first(self, messages: Sequence[Message]) -> NextPrompt:
        text = self._render(messages)
        return NextPrompt(self._encode(text), text)

    def following(self, messages: Sequence[Message], prompt: str, answer_ids: Sequence[int]) -> NextPrompt:
        text, before = self._render(messages), prompt + self._tokenizer.decode(answer_ids, skip_special=False)
        if text.startswith(before):
            return NextPrompt(self._encode(text[len(before) :]), text)
        return NextPrompt(self._encode(text), text, _first_difference(before, text))

    def answer(self, ids: Sequence[int]) -> Message:
        return answer_message(self._tokenizer.decode(ids, skip_special=False))

    def _render(self, messages: Sequence[Message]) -> str:
        return self._tokenizer.chat.render(messages, add_generation_prompt=True, tools=self._tools)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=False) if text else []


class PlainText:
    """Texts one after the other: every prompt continues the one before it."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def first(self, messages: Sequence[Message]) -> NextPrompt:
        return NextPrompt(self._tokenizer.encode("".join(message["content"] for message in messages)))

    def following(self, messages: Sequence[Message], prompt: str, answer_ids: Sequence[int]) -> NextPrompt:
        last = max(place for place, message in enumerate(messages) if message["role"] == ASSISTANT)
        text = "".join(message["content"] for message in messages[last + 1 :])
        return NextPrompt(self._tokenizer.encode(text, special=False) if text else [])

    def answer(self, ids: Sequence[int]) -> Message:
        return {"role": ASSISTANT, "content": self._tokenizer.decode(ids, skip_special=False)}


def _first_difference(before: str, text: str) -> str:
    pairs = enumerate(zip(before, text, strict=False))
    place = next((at for at, (one, other) in pairs if one != other), min(len(before), len(text)))
    quoted = slice(max(0, place - QUOTED), place + QUOTED)
    return f"{text[quoted]!r} in place of {before[quoted]!r}"
