"""The tokens of the probe: those of the training rows, and what takes their place."""

import logging
from pathlib import Path

import pytest

from areal_like.data.tokenizer import TextTokenizer
from areal_like.models import model_folder
from areal_like.training.probe_prompt import TEXT, probe_tokens
from tests.support.rollout_world import grpo

VOCAB = 64


@pytest.mark.parametrize(
    ("data", "has_tokenizer", "expected", "source"),
    [
        (list(range(64)), True, list(range(62)), "62 tokens of the first training rows"),
        ([], True, None, "62 tokens of a fixed text"),
        ([VOCAB] * 64, True, None, "62 tokens of a fixed text"),
        ([], False, [], "62 random tokens"),
    ],
    ids=["rows", "no rows", "unknown to the model", "no tokenizer"],
)
def test_the_log_says_of_what_the_probe_is_made(
    data: list[int], has_tokenizer: bool, expected: list[int] | None, source: str, tmp_path: Path, caplog
) -> None:
    folder = model_folder("builtin:tiny-addition")
    with caplog.at_level(logging.INFO):
        first, again = (probe_tokens(grpo(), data, folder if has_tokenizer else tmp_path, VOCAB, 64) for _ in range(2))
    assert first == again and len(first) == 62 and 0 <= min(first) <= max(first) < VOCAB
    if expected is None:
        expected = TextTokenizer(folder).encode(TEXT)[:62]
    assert not expected or first == expected
    assert caplog.messages[0].startswith(f"probe: {source}")
