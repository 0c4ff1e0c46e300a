"""Which sequences go together: into micro-batches that fit into memory, into the parts of a batch, onto ranks.

Plans are lists of row numbers. They depend on lengths alone, and so every process comes to the same one.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np

LIMIT_KEY = "actor.mb_spec.max_tokens_per_mb"

RowGroups = list[list[int]]


def first_fit_decreasing(sizes: Sequence[int], capacity: int | None, min_groups: int = 1) -> RowGroups:
    """Groups of at most `capacity` (None: any), and at least `min_groups` of them.

    The largest come first. One goes where it fits among the fewest others (then: where the least is); a new group is
    opened while there are too few, and when it does not fit even where the least is.
    """
    if len(sizes) < min_groups:
        raise ValueError(f"{len(sizes)} sizes cannot fill {min_groups} groups")
    if capacity is not None and max(sizes, default=0) > capacity:
        raise ValueError(f"a size of {max(sizes)} does not fit into a group of {capacity}")
    plan: RowGroups = []
    loads = np.zeros(len(sizes), dtype=np.int64)
    counts = np.zeros(len(sizes), dtype=np.int64)
    for row in np.argsort(-np.asarray(sizes, dtype=np.int64), kind="stable").tolist():
        size, opened = sizes[row], len(plan)
        if opened < min_groups or (capacity is not None and loads[:opened].min() + size > capacity):
            chosen = opened
            plan.append([])
        else:
            key = counts[:opened] * (loads[:opened].max() + 1) + loads[:opened]
            if capacity is not None:
                key[loads[:opened] + size > capacity] = np.iinfo(np.int64).max
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
    """Micro-batches of at most `max_tokens` tokens, at least `n_mbs` of them (but none without a sequence). Neighbours
    of one unit stay together; None: each is its own. `key` is what an error calls the limit."""
    members = group_neighbours(range(len(lengths)) if units is None else units)
    sizes = [sum(lengths[row] for row in unit) for unit in members]
    if max_tokens is not None and max(sizes, default=0) > max_tokens:
        unit = members[sizes.index(max(sizes))]
        what = f"sequence {unit[0]} has" if len(unit) == 1 else f"sequences {unit[0]} to {unit[-1]} together have"
        raise ValueError(
            f"{key}: {what} {max(sizes)} tokens, more than the {max_tokens} of a micro-batch; set it to at least "
            f"{max(sizes)}, or have shorter sequences"
        )
    plan = first_fit_decreasing(sizes, max_tokens, min(n_mbs or 1, len(sizes)))
    return [[row for unit in group for row in members[unit]] for group in plan]


def group_neighbours(units: Iterable[int]) -> RowGroups:
    """Rows of one unit that stand next to each other."""
    return [[row for row, _ in members] for _, members in groupby(enumerate(units), key=itemgetter(1))]


def balance(sizes: Sequence[int], num_parts: int, granularity: int = 1) -> RowGroups:
    """Exactly `num_parts` parts of about the same sum, such as the shares of ranks: the largest first, each to where
    the least is. So many as `granularity` neighbours stay together. Parts are empty where there are fewer sizes."""
    members = group_neighbours(row // granularity for row in range(len(sizes)))
    whole = [sum(sizes[row] for row in unit) for unit in members]
    plan: RowGroups = [[] for _ in range(num_parts)]
    loads = [0] * num_parts
    for unit in sorted(range(len(members)), key=lambda unit: (-whole[unit], unit)):
        chosen = min(range(num_parts), key=lambda part: (loads[part], len(plan[part]), part))
        plan[chosen] += members[unit]
        loads[chosen] += whole[unit]
    return [sorted(part) for part in plan]


def minibatches(lengths: Sequence[int], n: int, granularity: int = 1) -> RowGroups:
    """The batch in `n` parts of about the same number of tokens, one optimizer step each; fewer where there are fewer
    sequences, and neighbours together as in `balance`."""
    return balance(lengths, max(1, min(n, -(-len(lengths) // granularity))), granularity)
