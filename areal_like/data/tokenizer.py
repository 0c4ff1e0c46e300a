"""Text to token ids and back, without torch or transformers: a fast tokenizer's `tokenizer.json`."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

KEY = "tokenizer_path"
TEXTS_AT_ONCE = 4096


class TextTokenizer:
    """The tokenizer in a model's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ValueError(
                f"{KEY}: {folder} has no tokenizer.json; only fast tokenizers can be used "
                "(save_pretrained of transformers' AutoTokenizer writes one)"
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as fault:  # the Rust library raises nothing more precise
            raise ValueError(f"{KEY}: {file} is no tokenizer: {fault}") from fault
        # A file may carry what somebody's last batch was padded and cut to.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def encode(self, text: str, special: bool = True) -> list[int]:
        """`special` adds what the model wants around a text, such as a first token."""
        return self.encode_all([text], special)[0]

    def encode_all(self, texts: Sequence[str], special: bool = True) -> list[list[int]]:
        try:
            found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=special)
        except Exception as fault:  # the Rust library raises nothing more precise
            text = next((text for text in texts if not self._can_encode(text)), "")
            unknown = ", ".join(repr(sign) for sign in dict.fromkeys(text) if not self._can_encode(sign))
            why = f"it has no token for {unknown[:80]}" if unknown else str(fault)
            raise ValueError(f"{text[:80]!r} cannot be put into tokens of {self.folder}: {why}") from fault
        return [each.ids for each in found]

    def lengths(self, texts: Sequence[str], special: bool = True) -> list[int]:
        """How many tokens each has. The tokens of a large dataset do not fit into memory, and are not kept."""
        parts = (texts[at : at + TEXTS_AT_ONCE] for at in range(0, len(texts), TEXTS_AT_ONCE))
        return [len(ids) for part in parts for ids in self.encode_all(part, special)]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special)

    def decode_all(self, sequences: Sequence[Sequence[int]], skip_special: bool = True) -> list[str]:
        return self._tokenizer.decode_batch(sequences, skip_special_tokens=skip_special)

    @property
    def size(self) -> int:
        """Token ids are below this."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def eos_id(self) -> int | None:
        said = self._config.get("eos_token")
        token = said.get("content") if isinstance(said, dict) else said
        return None if token is None else self._tokenizer.token_to_id(token)

    @cached_property
    def _config(self) -> dict[str, Any]:
        file = self.folder / "tokenizer_config.json"
        said = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return said if isinstance(said, dict) else {}

    def _can_encode(self, text: str) -> bool:
        try:
            self._tokenizer.encode(text)
        except Exception:  # this is the question
            return False
        return True
