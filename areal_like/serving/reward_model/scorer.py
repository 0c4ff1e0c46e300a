"""Scores texts with a reward model: one number per text, from the head `score` at its last token."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

MAX_BATCH_TOKENS = 16384
MAX_LENGTH_RATIO = 2.0
"""Longest to shortest text of a batch; padding costs time."""
HEAD = "score"


class Scorer:
    """Texts must not be empty."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model  # without dropout, as from_pretrained leaves it
        self._head: torch.nn.Linear = getattr(model, HEAD)
        text = model.config.get_text_config()
        self.vocab_size: int = text.vocab_size
        self.max_length: int = text.max_position_embeddings

    @torch.inference_mode()
    def scores(self, texts: Sequence[Sequence[int]]) -> list[float]:
        scores = [0.0] * len(texts)
        for rows in length_batches([len(text) for text in texts]):
            for row, score in zip(rows, self._batch([texts[row] for row in rows]), strict=True):
                scores[row] = score
        return scores

    def _batch(self, texts: Sequence[Sequence[int]]) -> list[float]:
        """Padding on the right changes nothing: no token attends to later ones."""
        device = self._model.device
        last = torch.tensor([len(text) - 1 for text in texts], device=device)
        ids = torch.zeros(len(texts), int(last.max()) + 1, dtype=torch.int64)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = torch.tensor(text)
        hidden = self._model.base_model(input_ids=ids.to(device), use_cache=False).last_hidden_state
        chosen = hidden[torch.arange(len(texts), device=device), last].float()
        scores: list[float] = (chosen @ self._head.weight[0].float()).tolist()
        return scores


def length_batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Rows of similar length together, up to MAX_BATCH_TOKENS."""
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        width = lengths[row]
        if rows and ((len(rows) + 1) * width > MAX_BATCH_TOKENS or width > MAX_LENGTH_RATIO * lengths[rows[0]]):
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows


def load_scorer(folder: Path, device: str) -> Scorer:
    """Loads it in the precision of the checkpoint; raises ValueError if `folder` has no reward model."""
    disable_progress_bar()  # type: ignore[no-untyped-call]
    loaded: Any = AutoModelForSequenceClassification.from_pretrained(
        folder, dtype="auto", local_files_only=True, output_loading_info=True
    )
    model, report = loaded
    head: Any = getattr(model, HEAD, None)
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"{folder} is no reward model: it lacks {missing[0]}; train one with reward_model.yaml")
    is_linear = isinstance(head, torch.nn.Linear)
    if not is_linear or getattr(head, "bias", None) is not None or head.out_features != 1:
        raise ValueError(
            f"{folder} is no reward model that can be served: take a {type(model).__name__} whose head {HEAD} is "
            "linear and gives one number"
        )
    return Scorer(torch.nn.Module.to(model.requires_grad_(False), device))
