"""Exchanges texts between the processes of a group of torch, as bytes: torch's own exchange of objects pickles them."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def gather_texts(text: str, group: Any) -> list[str]:
    """Those of all processes, by rank. All must call it; `group` is one on the CPU."""
    content = torch.tensor(list(text.encode()), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
    dist.all_gather(lengths, torch.tensor([len(content)]), group=group)
    longest = max(int(length.item()) for length in lengths)
    texts = [torch.zeros(longest, dtype=torch.uint8) for _ in lengths]
    dist.all_gather(texts, nn.functional.pad(content, (0, longest - len(content))), group=group)
    return [
        bytes(padded[: int(length.item())].tolist()).decode() for padded, length in zip(texts, lengths, strict=True)
    ]
