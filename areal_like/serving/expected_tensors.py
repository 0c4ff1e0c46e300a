"""The tensors that a publication must contain: those of the engine, or of the server's checkpoint."""

import json
import logging
from pathlib import Path

from areal_like.weights.index import Index
from areal_like.weights.verify import Expected, checkpoint_tensors

TIED_HEAD = "lm_head.weight"
"""A model that shares it with the embedding publishes only the embedding."""

log = logging.getLogger(__name__)


class ExpectedTensors:
    """`known`: what the engine reports, with its precision. A checkpoint with other tensor names than the publications'
    does not determine them; then the first accepted publication does."""

    def __init__(self, folder: Path, known: Expected | None = None) -> None:
        self._folder, self._known = folder, known
        self._first: Expected | None = None

    def of(self, index: Index) -> Expected | None:
        """For this publication, in the precision that it has unless the engine reports one; None accepts all."""
        if self._known is not None:
            return self._known
        names = self._first or self._of_checkpoint(index)
        if names is None:
            return None
        sent = {info.name: info.dtype for info in index.tensors}
        return {name: (shape, sent.get(name, dtype)) for name, (shape, dtype) in names.items()}

    def accept(self, index: Index) -> None:
        """The engine took this publication, and it was verified."""
        self._first = {info.name: (info.shape, info.dtype) for info in index.tensors}

    def _of_checkpoint(self, index: Index) -> Expected | None:
        try:
            tensors = checkpoint_tensors(self._folder)
        except ValueError as fault:
            log.warning("%s; the first publication decides which tensors are expected", fault)
            return None
        sent = {info.name for info in index.tensors}
        if 2 * len(sent & tensors.keys()) < len(tensors):
            log.warning("%s has other tensor names than the publications; the first of these decides", self._folder)
            return None
        if TIED_HEAD in tensors and TIED_HEAD not in sent and self._is_tied():
            del tensors[TIED_HEAD]
        return tensors

    def _is_tied(self) -> bool:
        config = json.loads((self._folder / "config.json").read_text(encoding="utf-8"))
        return bool(config.get("tie_word_embeddings", True))
