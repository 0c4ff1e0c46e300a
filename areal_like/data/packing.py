"""Packing: distributes sequences over micro-batches that fit into memory, over minibatches, and over ranks.

Plans are lists of row indices. They depend on lengths only, so that every process computes the same plan.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np

LIMIT_KEY = "actor.mb_spec.max_tokens_per_mb"

RowGroups = list[list[int]]


def first_fit_decreasing(sizes: Sequence[int], capacity: int | None, min_groups: int = 1) -> RowGroups:
    """Groups of at most `capacity` (None: unlimited), at least `min_groups` of them.

    Largest first. Each goes to the group with the fewest members where it fits (ties: with the smallest load). A new
    group is opened while there are fewer than `min_groups`, and if it does not fit into the group with the smallest
    load.
    """
    if len(sizes) < min_groups:
        raise ValueError(f"{len(sizes)} sizes cannot fill {min_groups} groups")
    if capacity is not None and max(sizes, default=0) > capacity:
        raise ValueError(f"a size of {max(sizes)} does not fit into a group of {capacity}")
    plan: RowGroups = []
    loads = np.zeros(len(sizes), dtype=np.int64)
    counts = np.zeros(len(sizes), dtype=np.int64)
    for row in np.argsort(-np.asarray(sizes, dtype=np.int64), kind="stable").tolist():
        size, num_groups = sizes[row], len(plan)
        if num_groups < min_groups or (capacity is not None and loads[:num_groups].min() + size > capacity):
            chosen = num_groups
            plan.append([])
        else:
            key = counts[:num_groups] * (loads[:num_groups].max() + 1) + loads[:num_groups]
            if capacity is not None:
                key[loads[:num_groups] + size > capacity] = np.iinfo(np.int64).max
            chosen = int(key.argmin())
        plan[chosen].append(row)
        loads[chosen] += size
        counts[chosen] += 1
    return [sorted(group) for group in plan]


def micro_batches(
    lengths: Sequence[int],
    *,
    n_mbs: int | None = 1,
    units: Sequence[int] | None = None,
    max_tokens: int | None = None,
    key: str = LIMIT_KEY,
) -> RowGroups:
    """Micro-batches of at most `max_tokens` tokens, at least `n_mbs` of them (but none empty). Neighbouring rows of one
    unit stay together (None: each row is a unit). `key` is the key of the limit, for messages."""
    members = group_neighbours(range(len(lengths)) if units is None else units)
    sizes = [sum(lengths[row] for row in unit) for unit in members]
    if max_tokens is not None and max(sizes, default=0) > max_tokens:
        unit = members[sizes.index(max(sizes))]
        what = f"sequence {unit[0]} has" if len(unit) == 1 else f"sequences {unit[0]} to {unit[-1]} together have"
        raise ValueError(
            f"{key}: {what} {max(sizes)} tokens, more than the {max_tokens} of a micro-batch; set it to at least "
            f"{max(sizes)}, or use shorter sequences"
        )
    plan = first_fit_decreasing(sizes, max_tokens, min(n_mbs or 1, len(sizes)))
    return [[row for unit in group for row in members[unit]] for group in plan]


def group_neighbours(units: Iterable[int]) -> RowGroups:
    """Neighbouring rows of the same unit."""
    return [[row for row, _ in members] for _, members in groupby(enumerate(units), key=itemgetter(1))]


def balance(sizes: Sequence[int], num_parts: int, granularity: int = 1) -> RowGroups:
    """Exactly `num_parts` parts of about equal size, such as the shares of ranks: the largest first, each to the
    smallest part. `granularity` neighbouring rows stay together. Parts are empty if there are fewer sizes."""
    members = group_neighbours(row // granularity for row in range(len(sizes)))
    unit_sizes = [sum(sizes[row] for row in unit) for unit in members]
    plan: RowGroups = [[] for _ in range(num_parts)]
    loads = [0] * num_parts
    for unit in sorted(range(len(members)), key=lambda unit: (-unit_sizes[unit], unit)):
        chosen = min(range(num_parts), key=lambda part: (loads[part], len(plan[part]), part))
        plan[chosen] += members[unit]
        loads[chosen] += unit_sizes[unit]
    return [sorted(part) for part in plan]


def minibatches(lengths: Sequence[int], n: int, granularity: int = 1) -> RowGroups:
    """The batch in `n` parts of about equal token counts, one optimizer step each; fewer if there are fewer sequences.
    Neighbouring rows stay together as in `balance`."""
    return balance(lengths, max(1, min(n, -(-len(lengths) // granularity))), granularity)
