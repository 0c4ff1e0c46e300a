"""The prompt of the probe: the first tokens of the training rows, the same for all versions of a run.

Rounding changes unlikely tokens most: random tokens would hide far larger faults than text does.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from areal_like.config.dotted_path import value_of
from areal_like.config.engines import engines
from areal_like.data.tokenizer import TextTokenizer
from areal_like.process.seeds import derive_seed
from areal_like.weights.probe import PROBE_TOKENS

MARGIN = 2
"""Engines generate a token after a prompt to score it, and some want another one of their context."""
TEXT = (
    "question: a train leaves the city at 9:15 and travels 120 miles in 2 hours and 30 minutes. how fast is it, and "
    "when does it arrive? answer: 2 hours and 30 minutes are 150 minutes, or 5/2 hours. the speed is the distance "
    "divided by the time, so we compute 120 / (5/2) = 120 * 2 / 5 = 48, and the train is as fast as 48 miles per hour. "
    "it leaves at 9:15, and 2 hours later it is 11:15; after another 30 minutes it arrives at 11:45."
)
"""Without characters that a tokenizer of few characters lacks."""


log = logging.getLogger(__name__)


def probe_tokens(config: Any, data: Sequence[int], folder: Path, vocab_size: int, max_length: int) -> list[int]:
    """`data` are the first tokens of the training rows. Without them, or if the model lacks one of them, it is the
    start of TEXT; random tokens for a model without a tokenizer for that. `max_length`: that of the model."""
    limits = (value_of(config, keys.length_key) for keys in engines())
    longest = min(PROBE_TOKENS, max_length - MARGIN, *(limit - MARGIN for limit in limits if limit))
    try:
        text = TextTokenizer(folder).encode(TEXT)
    except ValueError:
        text = []
    for source, ids in (("the first training rows", data), ("a fixed text, as the rows give none", text)):
        found = [*ids[:longest]]
        if len(found) == longest and max(found) < vocab_size:
            log.info("probe: %d tokens of %s", longest, source)
            return found
    log.info("probe: %d random tokens, as neither rows nor tokenizer give any that the model knows", longest)
    generator = np.random.Generator(np.random.PCG64(derive_seed(config.seed, "probe")))
    return [int(number) for number in generator.integers(0, vocab_size, longest)]
