"""Log-probabilities in chunks equal those from all logits at once, with less memory and few operations."""

import weakref
from collections import Counter

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from areal_like.algorithms.logprobs import token_logprobs

TOKENS, HIDDEN, VOCABULARY = 40, 16, 101


def given(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator).to(dtype).requires_grad_()
    head = (torch.randn(VOCABULARY, HIDDEN, generator=generator) / 2).to(dtype).requires_grad_()
    return hidden, head, torch.randint(VOCABULARY, (TOKENS,), generator=generator)


def plainly(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    at_least = torch.promote_types(hidden.dtype, torch.float32)
    log_p = torch.log_softmax(hidden.to(at_least) @ head.to(at_least).t() / temperature, -1)
    entropy = -torch.sum(log_p.exp() * log_p, -1)
    return torch.take_along_dim(log_p, targets[:, None], -1).squeeze(-1), entropy


@pytest.mark.parametrize("chunk", [1, 6, 39, 40, None])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("uses", ["logprobs", "entropy", "both"])
def test_values_and_gradients_equal_those_of_all_logits_at_once(chunk, temperature, uses) -> None:
    hidden, head, targets = given()
    weigh = torch.randn(2, TOKENS, generator=torch.Generator().manual_seed(1))

    def total(logprobs: Tensor, entropy: Tensor) -> Tensor:
        parts = {"logprobs": logprobs @ weigh[0], "entropy": entropy @ weigh[1]}
        return parts["logprobs"] + parts["entropy"] if uses == "both" else parts[uses]

    expected = plainly(hidden, head, targets, temperature)
    actual = token_logprobs(hidden, head, targets, temperature, True, chunk_tokens=chunk)
    assert actual[1] is not None
    for mine, plain in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, plain, atol=1e-5, rtol=1e-5)
    gradients = torch.autograd.grad(total(actual[0], actual[1]), (hidden, head))
    for mine, plain in zip(gradients, torch.autograd.grad(total(*expected), (hidden, head)), strict=True):
        torch.testing.assert_close(mine, plain, atol=1e-5, rtol=1e-5)


def test_gradients_match_finite_differences() -> None:
    hidden, head, targets = (x[:6] for x in given(torch.float64))
    hidden, head = hidden.detach().requires_grad_(), head.detach().requires_grad_()

    def both(hidden: Tensor, head: Tensor) -> tuple[Tensor, ...]:
        logprobs, entropy = token_logprobs(hidden, head, targets % 6, 0.7, True, chunk_tokens=4)
        assert entropy is not None
        return logprobs, entropy

    assert torch.autograd.gradcheck(both, (hidden, head))


@pytest.mark.parametrize("chunk", [4, None])
def test_capped_logits_and_their_gradients_are_correct(chunk) -> None:
    hidden, head, targets = (x[:6] for x in given(torch.float64))
    hidden, head, targets = hidden.detach().requires_grad_(), head.detach().requires_grad_(), targets % 6

    def both(hidden: Tensor, head: Tensor) -> tuple[Tensor, ...]:
        logprobs, entropy = token_logprobs(hidden, head, targets, 0.7, True, softcap=1.5, chunk_tokens=chunk)
        assert entropy is not None
        return logprobs, entropy

    assert torch.autograd.gradcheck(both, (hidden, head))
    expected = (1.5 * torch.tanh(hidden @ head.t() / 1.5) / 0.7).log_softmax(-1)
    torch.testing.assert_close(both(hidden, head)[0], expected.gather(-1, targets[:, None]).squeeze(-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("chunk", [8, 100])
def test_in_half_precision_logits_are_still_float32(dtype, chunk) -> None:
    hidden, head, targets = given(dtype)
    actual, _ = token_logprobs(hidden, head, targets, 0.7, chunk_tokens=chunk)
    expected, _ = plainly(hidden, head, targets, 0.7)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    gradients = torch.autograd.grad(actual.sum(), (hidden, head))
    for mine, plain in zip(gradients, torch.autograd.grad(expected.sum(), (hidden, head)), strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine, plain)


def test_large_logits_do_not_overflow() -> None:
    hidden, head, targets = given()
    for chunk in (8, None):
        actual, entropy = token_logprobs(1e4 * hidden, head, targets, 0.01, True, chunk_tokens=chunk)
        assert actual.isfinite().all()
        assert entropy is not None and entropy.isfinite().all()


def test_a_frozen_head_or_model_gets_no_gradient() -> None:
    hidden, head, targets = given()
    actual, _ = token_logprobs(hidden, head.detach(), targets, chunk_tokens=8)
    assert torch.autograd.grad(actual.sum(), hidden)[0].any()
    actual, _ = token_logprobs(hidden.detach(), head, targets, chunk_tokens=8)
    assert torch.autograd.grad(actual.sum(), head)[0].any()
    with torch.no_grad():
        assert not token_logprobs(hidden, head, targets, chunk_tokens=8)[0].requires_grad


def test_no_tokens_are_no_error() -> None:
    hidden, head, targets = given()
    actual, entropy = token_logprobs(hidden[:0], head, targets[:0], 1.0, True)
    assert actual.shape == (0,) and entropy is not None and entropy.shape == (0,)
    assert not torch.autograd.grad(actual.sum(), head)[0].any()


class Operations(TorchDispatchMode):
    """What the operations on tensors of at least `size` elements are, and the most bytes that were in memory at once.
    Views touch no memory."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.calls, self.most_bytes = size, Counter[str](), 0
        self._live: dict[int, tuple[weakref.ref[Tensor], int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves((args, kwargs, result)) if isinstance(each, Tensor)]
        if not func.is_view and any(tensor.numel() >= self.size for tensor in tensors):
            self.calls[func.overloadpacket.__name__] += 1
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self._live.setdefault(storage.data_ptr(), (weakref.ref(tensor), storage.nbytes()))
        self._live = {place: entry for place, entry in self._live.items() if entry[0]() is not None}
        self.most_bytes = max(self.most_bytes, sum(size for _, size in self._live.values()))
        return result

    def passes(self) -> dict[str, int]:
        """Operations that read or write all logits, but for the matrix products. Two others touch single logits."""
        return {name: count for name, count in self.calls.items() if name not in (*PRODUCTS, "gather", "scatter_add_")}


PRODUCTS = ("mm", "addmm", "t", "new_empty")
ONE_PASS = {"log_softmax": 1}
ENTROPY_PASSES = {"exp": 1, "mul_": 1, "sum": 1}
GRADIENT_PASSES = {"exp_": 1, "mul_": 1}
ENTROPY_GRADIENT_PASSES = {"addcmul": 1, **GRADIENT_PASSES}


@pytest.mark.parametrize(
    ("uses", "forward", "backward"),
    [
        ("logprobs", ONE_PASS, {**ONE_PASS, **GRADIENT_PASSES}),
        ("entropy as a metric", {**ONE_PASS, **ENTROPY_PASSES}, {**ONE_PASS, **GRADIENT_PASSES}),
        ("entropy", {**ONE_PASS, **ENTROPY_PASSES}, {**ONE_PASS, **ENTROPY_GRADIENT_PASSES}),
    ],
)
def test_logits_are_passed_over_once_and_their_gradient_in_few_operations(uses, forward, backward) -> None:
    hidden, head, targets = given()
    chunks = 2
    with Operations(20 * VOCABULARY) as operations:
        logprobs, entropy = token_logprobs(hidden[:40], head, targets[:40], 1.0, uses != "logprobs", chunk_tokens=20)
        assert operations.passes() == {name: chunks * count for name, count in forward.items()}
        assert operations.calls["mm"] == chunks
        operations.calls.clear()
        total = logprobs.sum()
        torch.autograd.backward(total if entropy is None or uses != "entropy" else total + entropy.sum())
        assert operations.passes() == {name: chunks * count for name, count in backward.items()}
        assert sum(operations.calls[name] for name in ("mm", "addmm")) == 3 * chunks


def most_bytes(tokens: int, with_entropy: bool) -> int:
    """That are in memory at once, with chunks of 50 tokens and 1,000 entries."""
    hidden, head = torch.randn(tokens, 4, requires_grad=True), torch.randn(1000, 4, requires_grad=True)
    targets = torch.randint(1000, (tokens,))
    with Operations(50 * 1000) as operations:
        logprobs, entropy = token_logprobs(hidden, head, targets, 0.5, with_entropy, chunk_tokens=50)
        total = logprobs.sum() if entropy is None else logprobs.sum() + entropy.sum()
        total.backward()
    return int(operations.most_bytes)


@pytest.mark.parametrize("with_entropy", [False, True])
def test_memory_does_not_grow_with_tokens_times_vocabulary(with_entropy) -> None:
    most = [most_bytes(tokens, with_entropy) for tokens in (2000, 4000)]
    chunk_bytes = 4 * 50 * 1000
    assert chunk_bytes < most[0] < 4 * chunk_bytes
    assert most[1] - most[0] <= 2000 * 4 * 20, "some numbers per token"
