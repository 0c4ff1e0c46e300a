"""Captured decode steps of the embedded engine give the answers of plain ones, while the cache grows, which drops all
graphs, and weights are swapped."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from areal_like.serving.engines.embedded.core.decode_graphs import CudaCapture
from areal_like.serving.engines.embedded.core.llm_engine import LLMEngine
from areal_like.serving.requests import GroupRequest, Sampling
from tests.gpu.machine import device
from tests.gpu.models import TINY
from tests.gpu.report import Aim, Report
from tests.support import recorded_graphs

ROUNDS = ((2, 40), (6, 60), (24, 300))
"""Requests, and tokens of each answer: the cache grows with each round."""
SMALL_ROUNDS = ((1, 6), (2, 9))
MAX_RUNNING = 64
OFF = Aim(most=2e-4)

Answers = list[tuple[list[int], list[float]]]


def graphs(report: Report) -> None:
    is_gpu = torch.cuda.is_available()
    captured = engine(CudaCapture(device()) if is_gpu else recorded_graphs.capture)
    plain = engine(None)
    off, same, total = 0.0, 0, 0
    for number, (count, new) in enumerate(SMALL_ROUNDS if report.small else ROUNDS):
        for one in (captured, plain):
            one.update_weights(weights(number), number + 1)
        for _ in range(2):  # a step is captured the second time that it is needed
            pairs = zip(answers(captured, count, new), answers(plain, count, new), strict=True)
            for (tokens, logprobs), (wanted, of_wanted) in pairs:
                alike = same_prefix(tokens, wanted)
                same, total = same + alike, total + len(wanted)
                off = max([off, *(abs(a - b) for a, b in zip(logprobs[:alike], of_wanted[:alike], strict=True))])
    assert captured.runner.graphs is not None
    counts = captured.runner.graphs.counts
    report.limit("steps captured", counts.captured, Aim(least=2))
    report.limit("steps replayed / captured", counts.replayed / max(counts.captured, 1), Aim(least=1))
    report.limit("log-probabilities of equal tokens off by at most", off, OFF)
    report.limit("share of tokens before the first that differs", same / total, Aim(least=0.9))
    report.figure("cache grown", captured.cache.layout)


def engine(capture: Any) -> LLMEngine:
    made = LLMEngine(model(0), MAX_RUNNING, capture=capture, kv_cache_tokens=64 * 1024)
    made.eos_token_ids.clear()
    return made


def model(seed: int) -> PreTrainedModel:
    torch.manual_seed(seed)
    made: Any = AutoModelForCausalLM.from_config(TINY, dtype=torch.float32)
    return cast(PreTrainedModel, made.to(device()))


def weights(seed: int) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in model(seed).named_parameters()}


def answers(one: LLMEngine, count: int, new: int) -> Answers:
    groups = [
        GroupRequest(
            str(at), tuple(2 + (at + place) % 200 for place in range(5 + at % 7)), 2, at, Sampling(max_new_tokens=new)
        )
        for at in range(count)
    ]
    return [(sample.token_ids, sample.logprobs) for group in one.generate(groups) for sample in group.samples]


def same_prefix(some: Sequence[int], others: Sequence[int]) -> int:
    pairs = enumerate(zip(some, others, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(some), len(others)))
