"""Pairs of a better and a worse answer as sequences that are scored as a whole."""

import numpy as np

from areal_like.data.row_tokenizer import TokenSequences
from areal_like.training.sequences import MicroBatch, Sequences

PLACEHOLDER = 0


def scoring_sequences(tokens: TokenSequences) -> Sequences:
    """Each sequence with one token more, which alone counts: it is never computed, and what a value head says where it
    would be predicted, at the last token of the text, is the score of the text."""
    ends_N = np.cumsum(tokens.lengths_N)
    token_ids = np.insert(tokens.token_ids, ends_N, PLACEHOLDER)
    loss_mask = np.zeros(len(token_ids), np.bool_)
    loss_mask[ends_N + np.arange(len(ends_N))] = True
    return Sequences(token_ids, loss_mask, tokens.lengths_N + 1)


def chosen_and_rejected(micro: MicroBatch) -> tuple[list[int], list[int]]:
    """Where the scores of the better answers stand among those of a micro-batch, and where those of the worse ones,
    pair by pair. Every second sequence is the worse one of the pair; a micro-batch has both."""
    place = {row: at for at, row in enumerate(micro.rows_N.tolist())}
    better = [row for row in place if row % 2 == 0]
    return [place[row] for row in better], [place[row + 1] for row in better]
