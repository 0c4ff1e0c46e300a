"""An engine whose hashes are right and whose computation is not."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from plain_engine import PlainEngine  # type: ignore[import-not-found]
from transformers import DynamicCache


class StaleEngine(PlainEngine):
    _model: Any

    def __init__(self, config: Any, cwd: Path, model: Any) -> None:
        super().__init__(config, cwd, model)
        self._captured = copy.deepcopy(model)

    def _logits(self, token_ids: Sequence[int], cache: DynamicCache | None = None) -> torch.Tensor:
        shown, self._model = self._model, self._captured
        try:
            logits: torch.Tensor = super()._logits(token_ids, cache)
            return logits
        finally:
            self._model = shown
