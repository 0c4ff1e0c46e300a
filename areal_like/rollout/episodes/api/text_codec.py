"""A tokenizer for models whose tokens are unknown: a token is a character, and messages are their JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from areal_like.data.chat_template import Message

MESSAGES = "\0messages "
"""Begins a prompt of messages."""
NUM_CHARACTERS = 0x110000
END = NUM_CHARACTERS - 1
"""The end of an answer, so that an empty one has a token. It is no character of any text."""


class MessageTemplate:
    """In place of a chat template: the service applies its own."""

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, tools: Any = None) -> str:
        return MESSAGES + json.dumps({"messages": list(messages), **({"tools": tools} if tools else {})})


class TextCodec:
    """What workers use of a `TextTokenizer`."""

    chat = MessageTemplate()
    renders_chats = False
    has_chat_template = True
    size = NUM_CHARACTERS
    longest_token = 1
    eos_id: int | None = None
    special_tokens: tuple[str, ...] = ()
    named_tokens: Mapping[str, str] = {}

    def encode(self, text: str, special: bool = True) -> list[int]:
        return list(map(ord, text))

    def encode_prompt(self, prompt: str | Sequence[Message], tools: Any = None) -> list[int]:
        return self.encode(prompt if isinstance(prompt, str) else self.chat.render(prompt, tools=tools))

    def encode_all(self, texts: Sequence[str], special: bool = True) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def lengths(self, texts: Sequence[str], special: bool = True) -> list[int]:
        return list(map(len, texts))

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return "".join(chr(each) for each in ids if not (skip_special and each == END))

    def decode_all(self, sequences: Sequence[Sequence[int]], skip_special: bool = True) -> list[str]:
        return [self.decode(ids, skip_special) for ids in sequences]


def request_of(prompt_ids: Sequence[int]) -> dict[str, Any]:
    """`messages`, and `tools` if there are any; a text is the message of a user."""
    text = "".join(map(chr, prompt_ids))
    if text.startswith(MESSAGES):
        found: dict[str, Any] = json.loads(text.removeprefix(MESSAGES))
        return found
    return {"messages": [{"role": "user", "content": text}]}
