"""Counted operations are those that torch counts in a real step, without what is computed twice or masked."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.gpu.flops import attention_flops, peak_flops, training_flops
from tests.gpu.models import QWEN3_0_6B, TINY, engine_of, learn, sequences_of
from tests.gpu.steps import PUBLISHED

LENGTHS = [12, 7, 30]


def counted(lengths: Sequence[int], first_in_loss: float) -> dict[str, int]:
    """By torch, in a step with explicit attention: by operator. `bmm` is attention alone."""
    sequences = sequences_of(lengths, TINY.vocab_size, first_in_loss)
    with (
        engine_of(TINY, attn_impl="eager", gradient_checkpointing=False) as engine,
        FlopCounterMode(display=False) as counter,
    ):
        learn(engine, sequences)
    return {str(operator): count for operator, count in counter.get_flop_counts()["Global"].items()}


@pytest.mark.parametrize("first_in_loss", [0.0, 0.8])
def test_matrix_products_are_those_that_torch_counts(first_in_loss: float) -> None:
    in_loss = int(sequences_of(LENGTHS, TINY.vocab_size, first_in_loss).loss_tokens_N.sum())
    lengths = [int(each) for each in sequences_of(LENGTHS, TINY.vocab_size, first_in_loss).input_lengths_N]
    by_operator = counted(LENGTHS, first_in_loss)
    ours = training_flops(TINY, lengths, in_loss) - 3 * attention_flops(TINY, lengths)
    assert sum(count for operator, count in by_operator.items() if "bmm" not in operator) == ours


def test_attention_is_the_causal_half_of_what_torch_counts() -> None:
    for length in (7, 30):
        whole = counted([length], 0.0)["aten.bmm"]
        assert 3 * attention_flops(TINY, [length]) == whole * (length + 1) / (2 * length)


def test_what_is_computed_again_to_save_memory_is_not_counted() -> None:
    kept = sum(counted(LENGTHS, 0.0).values())
    sequences = sequences_of(LENGTHS, TINY.vocab_size)
    with (
        engine_of(TINY, attn_impl="eager", gradient_checkpointing=True) as engine,
        FlopCounterMode(display=False) as counter,
    ):
        learn(engine, sequences)
    assert counter.get_total_flops() > 1.15 * kept
    assert training_flops(TINY, LENGTHS, sum(LENGTHS)) < kept


def test_the_share_of_the_peak_is_that_of_published_figures() -> None:
    """11.9k tokens/s of a Qwen3-0.6B at 16k tokens were published as 11.1% of an H100."""
    peak = peak_flops("NVIDIA H100 80GB HBM3")
    assert peak is not None
    per_token = training_flops(QWEN3_0_6B, [16384], 16384) / 16384
    assert PUBLISHED["tokens_per_s"] * per_token / peak == pytest.approx(PUBLISHED["mfu"], rel=0.01)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_the_peak_of_a_device(name: str, peak: float | None) -> None:
    assert peak_flops(name) == peak


def test_synchronizations_are_counted_once_each() -> None:
    from tests.gpu.synchronizations import Synchronizations

    values = torch.arange(4.0)
    with Synchronizations() as waits:
        (values * 2).sum()
        assert waits.total == 0
        values.sum().item()
        float(values[0])
        values.nonzero()
    assert waits.total == 3 and waits.counts["aten::_local_scalar_dense"] == 2


def test_copies_between_a_gpu_and_pinned_memory_do_not_wait() -> None:
    from tests.gpu.synchronizations import copy_waits

    gpu, host, pinned = (
        SimpleNamespace(is_cuda=is_cuda, is_pinned=lambda is_pinned=is_pinned: is_pinned)
        for is_cuda, is_pinned in ((True, False), (False, False), (False, True))
    )
    does_not = {"non_blocking": True}
    assert copy_waits("aten::_to_copy", (host,), does_not, gpu) and copy_waits("aten::_to_copy", (pinned,), {}, gpu)
    assert not copy_waits("aten::_to_copy", (pinned,), does_not, gpu)
    assert copy_waits("aten::copy_", (host, gpu, True), {}, host)
    assert not copy_waits("aten::copy_", (pinned, gpu, True), {}, pinned)
    assert not copy_waits("aten::_to_copy", (gpu,), {}, gpu) and not copy_waits("aten::copy_", (host, pinned), {}, host)
