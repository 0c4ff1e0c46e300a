"""Fast tokenizers without torch or transformers: `tokenizer.json` and the chat template of a model folder."""

import copy
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from areal_like.data.chat_template import NO_ARGUMENTS, ChatTemplate, Message, read_template

KEY = "tokenizer_path"
TEXTS_AT_ONCE = 4096
ROLE_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Tokens named in `tokenizer_config.json` that chat templates may use."""


class TextTokenizer:
    """The tokenizer of a model folder; `chat_template_args` are variables of its chat template."""

    renders_chats = True
    """False where another program applies a chat template."""

    def __init__(self, folder: Path, chat_template_args: Mapping[str, Any] = NO_ARGUMENTS) -> None:
        self.folder, self._chat_template_args = folder, chat_template_args
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ValueError(
                f"{KEY}: {folder} has no tokenizer.json; only fast tokenizers are supported "
                "(save_pretrained of transformers' AutoTokenizer writes one)"
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as fault:  # the Rust library raises plain Exception
            raise ValueError(f"{KEY}: {file} is not a tokenizer: {fault}") from fault
        # A file may contain padding and truncation settings.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def with_template_args(self, arguments: Mapping[str, Any]) -> "TextTokenizer":
        """The same tokenizer, with further variables of the chat template."""
        other = copy.copy(self)
        other.__dict__.pop("chat", None)
        other._chat_template_args = {**self._chat_template_args, **arguments}
        return other

    def encode(self, text: str, special: bool = True) -> list[int]:
        """`special` adds the model's special tokens around the text, such as a first token."""
        return self.encode_all([text], special)[0]

    def encode_prompt(self, prompt: str | Sequence[Message], tools: Any = None) -> list[int]:
        """Of a text, or of messages with a generation prompt, and optional tools."""
        if isinstance(prompt, str):
            return self.encode(prompt)
        return self.encode(self.chat.render(prompt, add_generation_prompt=True, tools=tools), special=False)

    def encode_all(self, texts: Sequence[str], special: bool = True) -> list[list[int]]:
        try:
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=special)
        except Exception as fault:  # the Rust library raises plain Exception
            text = next((text for text in texts if not self._can_encode(text)), "")
            unknown = ", ".join(repr(sign) for sign in dict.fromkeys(text) if not self._can_encode(sign))
            why = f"it has no token for {unknown[:80]}" if unknown else str(fault)
            raise ValueError(f"{text[:80]!r} cannot be tokenized by {self.folder}: {why}") from fault
        return [each.ids for each in encodings]

    def lengths(self, texts: Sequence[str], special: bool = True) -> list[int]:
        """Number of tokens of each text. Tokens are not kept: those of a large dataset would not fit into memory."""
        parts = (texts[at : at + TEXTS_AT_ONCE] for at in range(0, len(texts), TEXTS_AT_ONCE))
        return [len(ids) for part in parts for ids in self.encode_all(part, special)]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special)

    def decode_all(self, sequences: Sequence[Sequence[int]], skip_special: bool = True) -> list[str]:
        return self._tokenizer.decode_batch(sequences, skip_special_tokens=skip_special)

    @property
    def size(self) -> int:
        """Upper bound of token ids."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token: a text has no more of them for each of its tokens."""
        return max(map(len, self._tokenizer.get_vocab(with_added_tokens=True)))

    @property
    def eos_id(self) -> int | None:
        token = self.named_tokens.get("eos_token")
        return None if token is None else self._tokenizer.token_to_id(token)

    @cached_property
    def named_tokens(self) -> dict[str, str]:
        """Role -> token, such as `eos_token`."""
        tokens = {name: self._config.get(name) for name in ROLE_TOKENS}
        texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in tokens.items()}
        return {name: text for name, text in texts.items() if isinstance(text, str)}

    @cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """Texts that are always one token and have a meaning for the model, such as the end of a turn."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        return tuple(token.content for token in added if token.special)

    @property
    def has_chat_template(self) -> bool:
        return read_template(self.folder, self._config) is not None

    @cached_property
    def chat(self) -> ChatTemplate:
        """The chat template."""
        template = read_template(self.folder, self._config)
        if template is None:
            raise ValueError(
                f"{KEY}: {self.folder} has no chat template (chat_template.jinja, or chat_template in its "
                "tokenizer_config.json), which messages need; use the tokenizer of a chat model, or rows of plain text"
            )
        source, file = template
        try:
            return ChatTemplate(source, self.named_tokens, str(file), self._chat_template_args)
        except ValueError as fault:
            raise ValueError(f"{KEY}: {fault}") from fault

    @cached_property
    def _config(self) -> dict[str, Any]:
        file = self.folder / "tokenizer_config.json"
        config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return config if isinstance(config, dict) else {}

    def _can_encode(self, text: str) -> bool:
        try:
            self._tokenizer.encode(text)
        except Exception:  # any failure means no
            return False
        return True
