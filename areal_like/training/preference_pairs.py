"""Pairs of a chosen and a rejected answer as sequences that get one score each."""

import numpy as np
import torch
from torch import Tensor

from areal_like.data.row_tokenizer import TokenSequences
from areal_like.training.sequences import MicroBatch, Sequences, to_device

PLACEHOLDER = 0


def scoring_sequences(tokens: TokenSequences) -> Sequences:
    """Appends to each sequence a placeholder token, the only one in the loss. It is never an input; the value head's
    output where it would be predicted, at the last token of the text, is the score of the text."""
    ends_N = np.cumsum(tokens.lengths_N)
    token_ids = np.insert(tokens.token_ids, ends_N, PLACEHOLDER)
    loss_mask = np.zeros(len(token_ids), np.bool_)
    loss_mask[ends_N + np.arange(len(ends_N))] = True
    return Sequences(token_ids, loss_mask, tokens.lengths_N + 1)


def chosen_and_rejected(micro: MicroBatch) -> tuple[Tensor, Tensor]:
    """Indices of the scores of chosen and of rejected answers in a micro-batch, pair by pair. Odd rows are rejected
    answers; a micro-batch has both of a pair."""
    place = {row: index for index, row in enumerate(micro.rows_N.tolist())}
    chosen_rows = [row for row in place if row % 2 == 0]
    pairs = torch.tensor([[place[row], place[row + 1]] for row in chosen_rows], dtype=torch.int64).view(-1, 2)
    chosen, rejected = to_device(pairs, micro.input_ids_T.device).unbind(1)
    return chosen, rejected
