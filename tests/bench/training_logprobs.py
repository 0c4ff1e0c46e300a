"""Log-probabilities in chunks compared with log_softmax and gather over all logits: time, extra memory, gradients.

Memory is the peak of a process minus its memory before, so each variant is measured in a separate process:

    python tests/bench/training_logprobs.py chunked 4096 65536 256
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from areal_like.algorithms.logprobs import token_logprobs  # noqa: E402

PLAIN, CHUNKED = "plain", "chunked"


def inputs(tokens: int, vocabulary: int, hidden: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden_TH = torch.randn(tokens, hidden, generator=generator, requires_grad=True)
    head_VH = (torch.randn(vocabulary, hidden, generator=generator) / hidden**0.5).requires_grad_()
    return hidden_TH, head_VH, torch.randint(0, vocabulary, (tokens,), generator=generator)


def run(way: str, hidden_TH: Tensor, head_VH: Tensor, targets_T: Tensor) -> Tensor:
    """Forward and backward."""
    hidden_TH.grad = head_VH.grad = None
    if way == CHUNKED:
        logprobs_T = token_logprobs(hidden_TH, head_VH, targets_T)[0]
    else:
        logits_TV = hidden_TH @ head_VH.t()
        logprobs_T = logits_TV.log_softmax(-1).gather(-1, targets_T[:, None]).squeeze(-1)
        del logits_TV
    torch.autograd.backward(-logprobs_T.mean())
    return logprobs_T.detach()


def measure(tokens: int = 4096, vocabulary: int = 65536, hidden: int = 256, repeats: int = 2) -> dict[str, Any]:
    given = inputs(tokens, vocabulary, hidden)
    memory_gb = {way: _memory_gb(way, tokens, vocabulary, hidden) for way in (PLAIN, CHUNKED)}
    seconds: dict[str, list[float]] = {PLAIN: [], CHUNKED: []}
    tensors: dict[str, list[Tensor]] = {}
    for _ in range(repeats):
        for way in seconds:
            began = time.process_time()
            logprobs_T = run(way, *given)
            seconds[way].append(time.process_time() - began)
            gradients = [tensor.grad for tensor in given[:2]]
            tensors[way] = [logprobs_T, *(gradient for gradient in gradients if gradient is not None)]
    best = {way: min(taken) for way, taken in seconds.items()}
    gaps = [((a - b).norm() / a.norm()).item() for a, b in zip(tensors[PLAIN], tensors[CHUNKED], strict=True)]
    return {
        "shape": {"tokens": tokens, "vocabulary": vocabulary, "hidden": hidden},
        "seconds": best,
        "extra_memory_gb": memory_gb,
        "times_as_long": best[CHUNKED] / best[PLAIN],
        "largest_difference": dict(zip(("logprobs", "hidden", "head"), gaps, strict=True)),
        "runs_s": seconds,
    }


def _memory_gb(way: str, *sizes: int) -> float:
    words = [sys.executable, __file__, way, *map(str, sizes)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ)
    return float(json.loads(done.stdout)["extra_memory_gb"])


def _status(name: str) -> float:
    """A field of /proc/self/status, in GB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e9 for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    way, sizes = sys.argv[1], [int(word) for word in sys.argv[2:]]
    given = inputs(*sizes)
    run(way, *inputs(8, 16, 4))  # warm-up: what the first use loads is not counted
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    run(way, *given)
    # Gradients take the same memory in both variants.
    gradients = sum(tensor.grad.nbytes for tensor in given[:2] if tensor.grad is not None) / 1e9
    print(json.dumps({"extra_memory_gb": _status("VmHWM") - before - gradients}))


if __name__ == "__main__":
    main()
