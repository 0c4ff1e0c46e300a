"""Which tensors a server's model has, as far as the files of its checkpoint tell."""

import json
import logging
from pathlib import Path

from areal_like.weights.index import Index
from areal_like.weights.verify import Expected, checkpoint_tensors

TIED_HEAD = "lm_head.weight"
"""Published once, under the embedding's name, where a model shares it."""

log = logging.getLogger(__name__)


class ExpectedTensors:
    """What every publication must hold. A checkpoint under other names than those of today cannot say that; then the
    first publication does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._first: Expected | None = None

    def expected(self, index: Index) -> Expected | None:
        """For this publication; None where anything is right. In whatever precision the trainer has them."""
        names = self._first or self._of_checkpoint(index)
        if names is None:
            return None
        sent = {info.name: info.dtype for info in index.tensors}
        return {name: (shape, sent.get(name, dtype)) for name, (shape, dtype) in names.items()}

    def served(self, index: Index) -> None:
        """It turned out to be what the engine wants."""
        self._first = {info.name: (info.shape, info.dtype) for info in index.tensors}

    def _of_checkpoint(self, index: Index) -> Expected | None:
        try:
            found = checkpoint_tensors(self._folder)
        except ValueError as unknown:
            log.warning("%s; the names of the first publication are taken as they are", unknown)
            return None
        sent = {info.name for info in index.tensors}
        if 2 * len(sent & found.keys()) < len(found):
            log.warning("%s holds its tensors under older names; those of the first publication count", self._folder)
            return None
        if TIED_HEAD in found and TIED_HEAD not in sent and self._is_tied():
            del found[TIED_HEAD]
        return found

    def _is_tied(self) -> bool:
        said = json.loads((self._folder / "config.json").read_text(encoding="utf-8"))
        return bool(said.get("tie_word_embeddings", True))
