"""The first tokens of a dataset: its rows one after the other, as a workflow tokenizes them."""

from collections.abc import Iterable
from itertools import islice

from areal_like.data.row_tokenizer import RowTokenizer
from areal_like.data.tasks import Row
from areal_like.data.tokenizer import TextTokenizer


def first_tokens(rows: Iterable[Row], tokenizer: TextTokenizer, count: int) -> list[int]:
    """Of prompts, each with its answer where that is a text. Few rows are repeated; empty if no row has tokens."""
    ids: list[int] = []
    for row in islice(rows, count):
        kind = "sft" if isinstance(row.get("answer"), str) else "rl"
        try:
            ids += RowTokenizer(tokenizer, kind).tokens([row]).token_ids.tolist()
        except ValueError:  # a worker fails on the row too, and says why, if the run ever takes it
            continue
        if len(ids) >= count:
            break
    return (ids * -(-count // len(ids)))[:count] if ids else []
