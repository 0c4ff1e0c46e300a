"""The prompt of the probe: a text of the kind that language models are trained on, the same for all versions of a run.

Rounding changes unlikely tokens most: random tokens would hide far larger faults than text does.
"""

from pathlib import Path
from typing import Any

import numpy as np

from areal_like.config.dotted_path import value_of
from areal_like.config.engines import engines
from areal_like.data.tokenizer import TextTokenizer
from areal_like.process.seeds import derive_seed

PROBE_TOKENS = 64
"""The mean over fewer is not stable."""
MARGIN = 2
"""Engines generate a token after a prompt to score it, and some want another one of their context."""
TEXT = (
    "question: a train leaves the city at 9:15 and travels 120 miles in 2 hours and 30 minutes. how fast is it, and "
    "when does it arrive? answer: 2 hours and 30 minutes are 150 minutes, or 5/2 hours. the speed is the distance "
    "divided by the time, so we compute 120 / (5/2) = 120 * 2 / 5 = 48, and the train is as fast as 48 miles per hour. "
    "it leaves at 9:15, and 2 hours later it is 11:15; after another 30 minutes it arrives at 11:45."
)
"""Without characters that a tokenizer of few characters lacks."""


def probe_tokens(config: Any, folder: Path, vocab_size: int, max_length: int) -> list[int]:
    """The text's first tokens; random ones for a model without a tokenizer for it. `max_length`: that of the model."""
    limits = (value_of(config, keys.length_key) for keys in engines())
    longest = min(PROBE_TOKENS, max_length - MARGIN, *(limit - MARGIN for limit in limits if limit))
    try:
        ids = TextTokenizer(folder).encode(TEXT)[:longest]
    except ValueError:
        ids = []
    if len(ids) == longest and max(ids) < vocab_size:
        return ids
    generator = np.random.Generator(np.random.PCG64(derive_seed(config.seed, "probe")))
    return [int(number) for number in generator.integers(0, vocab_size, longest)]
