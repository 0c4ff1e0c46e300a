"""Decodes sampled tokens for display; without a tokenizer the token ids are shown."""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from areal_like.config.redact import remove_secrets
from areal_like.models import model_folder
from areal_like.process.scrubbed_output import known_secrets

if TYPE_CHECKING:
    from areal_like.data.tokenizer import TextTokenizer

MAX_TEXT = 20_000

log = logging.getLogger(__name__)


class SampledText:
    """Loads the tokenizer in a thread, so that training does not wait for it."""

    def __init__(self, path: str, cwd: Path) -> None:
        executor = ThreadPoolExecutor(1, "tokenizer")
        self._loading: Future[TextTokenizer | None] = executor.submit(_load, path, cwd)
        executor.shutdown(wait=False)
        self._secrets = known_secrets()

    def __call__(self, ids: Sequence[int]) -> str:
        tokenizer = self._loading.result()
        text = " ".join(map(str, ids)) if tokenizer is None else tokenizer.decode(ids, skip_special=False)
        text = remove_secrets(text, self._secrets)
        if len(text) <= MAX_TEXT:
            return text
        return f"{text[:MAX_TEXT]} ... ({len(text) - MAX_TEXT} more characters)"


def _load(path: str, cwd: Path) -> "TextTokenizer | None":
    from areal_like.data.tokenizer import TextTokenizer

    if not path:
        return None
    try:
        return TextTokenizer(model_folder(path, cwd))
    except ValueError as fault:
        log.warning("samples are shown as token ids: %s", fault)
        return None
