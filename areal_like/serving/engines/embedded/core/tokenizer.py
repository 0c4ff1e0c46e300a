"""Tokenizer of a served model, loaded by the first request that has text or stop texts."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from areal_like.serving.requests import BadRequest, shorten
from areal_like.serving.stop_text import DecodeBatch, batch_decoder

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class LazyTokenizer:
    """`folder` may have a tokenizer.json; None: a model without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._loaded: Tokenizer | None = None

    def get(self) -> "Tokenizer":
        """From any thread; raises BadRequest if there is none."""
        with self._lock:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def encode(self, text: str, special: bool = True) -> list[int]:
        try:
            ids: list[int] = self.get().encode(text, add_special_tokens=special).ids
        except BadRequest:
            raise
        except Exception as fault:  # the library raises nothing narrower
            raise BadRequest(f"prompt: the tokenizer cannot read {shorten(text)}: {fault}") from fault
        return ids

    def decode(self, token_ids: Sequence[int], skip_special: bool = True) -> str:
        text: str = self.get().decode(token_ids, skip_special_tokens=skip_special)
        return text

    @property
    def decode_batch(self) -> DecodeBatch:
        """For stop texts."""
        return batch_decoder(self.get())

    def _load(self) -> "Tokenizer":
        from tokenizers import Tokenizer

        file = self._folder / "tokenizer.json" if self._folder else None
        if file is None or not file.is_file():
            raise BadRequest(f"{file or 'tokenizer.json'} does not exist, so this server cannot read or write text")
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_truncation()  # a file may set both, and a prompt must stay as it is
        tokenizer.no_padding()
        return tokenizer
