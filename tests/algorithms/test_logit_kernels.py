"""The kernels that a GPU compiles give the same numbers, and read the logits once. Compiled here for the CPU."""

import logging
import re
import shutil
import sysconfig
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, fx

from areal_like.algorithms import logit_kernels, logprobs
from areal_like.algorithms.logit_kernels import TokenGradients, can_compile, compiles, logit_gradient, token_values
from areal_like.algorithms.logprobs import token_logprobs
from areal_like.training.torch_compile import has_compiler
from tests.algorithms.test_logprobs import given, most_bytes, plainly

compile_function = torch.compile


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The way of a GPU with a compiler; what compiles is the test's choice."""

    def choose(compiled: Any) -> None:
        monkeypatch.setattr(logprobs, "compiles", lambda device_type: True)
        monkeypatch.setattr(logprobs, "compiled", compiled)

    return choose


@pytest.mark.parametrize("chunk", [7, 40])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("uses_entropy", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_compiled_equals_all_logits_at_once(as_on_a_gpu, chunk, temperature, uses_entropy, dtype) -> None:
    as_on_a_gpu(lambda function: function)
    hidden, head, targets = given(dtype)
    actual, entropy = token_logprobs(hidden, head, targets, temperature, True, chunk_tokens=chunk)
    expected, expected_entropy = plainly(hidden, head, targets, temperature)
    assert entropy is not None
    for mine, plain in ((actual, expected), (entropy, expected_entropy)):
        torch.testing.assert_close(mine, plain, atol=1e-5, rtol=1e-5)
    weigh = torch.linspace(-1, 1, len(targets))
    totals = [
        (logp * weigh).sum() + (h.square().sum() if uses_entropy else 0.0)
        for logp, h in ((actual, entropy), (expected, expected_entropy))
    ]
    gradients, plain_gradients = (torch.autograd.grad(total, (hidden, head)) for total in totals)
    for mine, plain in zip(gradients, plain_gradients, strict=True):
        tolerance = 1e-5 if dtype == torch.float32 else 1.6e-2
        torch.testing.assert_close(mine, plain, atol=1e-5, rtol=tolerance)


def test_capped_logits_have_the_same_gradient_in_what_is_compiled(as_on_a_gpu) -> None:
    as_on_a_gpu(lambda function: function)
    hidden, head, targets = (x[:6] for x in given(torch.float64))
    hidden, head, targets = hidden.detach().requires_grad_(), head.detach().requires_grad_(), targets % 6

    def both(hidden: Tensor, head: Tensor) -> tuple[Tensor, ...]:
        logprobs, entropy = token_logprobs(hidden, head, targets, 0.7, True, softcap=1.5, chunk_tokens=4)
        assert entropy is not None
        return logprobs, entropy

    assert torch.autograd.gradcheck(both, (hidden, head))


def test_a_kernel_is_one_graph_for_any_number_of_tokens(as_on_a_gpu, monkeypatch) -> None:
    graphs: list[str] = []

    def backend(graph: fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph.code)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(compile_function, backend=backend))
    logit_kernels.compiled.cache_clear()
    as_on_a_gpu(logit_kernels.compiled)
    try:
        for tokens in (40, 33, 17):
            hidden, head, targets = given()
            actual, entropy = token_logprobs(hidden[:tokens], head, targets[:tokens], 0.7, True, chunk_tokens=10)
            assert entropy is not None
            torch.autograd.backward(actual.sum() + entropy.detach().sum())
    finally:
        logit_kernels.compiled.cache_clear()
    assert len(graphs) == 2, "one of the values, one of the gradient"


@pytest.mark.parametrize("fails", ["token_values", "logit_gradient"])
def test_kernels_that_cannot_be_compiled_are_computed_uncompiled(monkeypatch, caplog, fails) -> None:
    """As on a GPU without a compiler from then on, in the memory of the logits; torch is not asked again."""
    asked: list[str] = []

    def compile_this(function: Any) -> Any:
        def backend(graph: fx.GraphModule, inputs: list[Any]) -> Any:
            asked.append(function.__name__)
            if function.__name__ == fails:
                raise RuntimeError("ptxas is too old")
            return graph.forward

        return compile_function(function, backend=backend)

    monkeypatch.setattr(torch, "compile", compile_this)
    monkeypatch.setattr(torch._dynamo.config, "suppress_errors", True)
    monkeypatch.setattr(logprobs, "compiles", lambda device_type: compiles("cuda"))
    monkeypatch.setattr(logit_kernels, "can_compile", lambda: True)
    monkeypatch.setattr(logit_kernels, "_failures", [])
    logit_kernels.compiled.cache_clear()
    try:
        for _ in range(2):
            hidden, head, targets = given()
            actual, _ = token_logprobs(hidden, head, targets, 0.7, chunk_tokens=10)
            expected, _ = plainly(hidden, head, targets, 0.7)
            torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
            gradients = [torch.autograd.grad(each.sum(), (hidden, head)) for each in (actual, expected)]
            for mine, plain in zip(*gradients, strict=True):
                torch.testing.assert_close(mine, plain, atol=1e-5, rtol=1e-5)
    finally:
        logit_kernels.compiled.cache_clear()
    assert asked[-1] == fails and asked.count(fails) == 1 and not compiles("cuda")
    (warning,) = [record.getMessage() for record in caplog.records if record.name == logit_kernels.__name__]
    assert warning.startswith("log-probabilities take about twice") and "ptxas is too old" in warning


@pytest.mark.parametrize("adds", [False, True])
def test_products_in_half_precision_are_summed_in_float32(as_on_a_gpu, monkeypatch, adds) -> None:
    """With the products of a GPU, which a CPU lacks."""
    multiply, multiply_add = torch.mm, torch.addmm
    products: list[str] = []

    def mm(a: Tensor, b: Tensor, *, out_dtype: torch.dtype | None = None, out: Tensor | None = None) -> Tensor:
        assert a.dtype == b.dtype == torch.bfloat16
        products.append("mm")
        return multiply(a.float(), b.float(), out=out) if out_dtype else multiply(a, b, out=out)

    def addmm(total: Tensor, a: Tensor, b: Tensor, *, out_dtype: torch.dtype, out: Tensor) -> Tensor:
        if not adds:
            raise RuntimeError("self and mat2 must have the same dtype")
        assert total is out and out_dtype == total.dtype
        products.append("addmm")
        return multiply_add(total, a.float(), b.float(), out=out)

    as_on_a_gpu(lambda function: function)
    monkeypatch.setattr(logprobs, "multiplies_half", lambda device: True)
    monkeypatch.setattr(torch, "mm", mm)
    monkeypatch.setattr(torch, "addmm", addmm)
    logprobs.adds_to_float32.cache_clear()
    hidden, head, targets = given(torch.bfloat16)
    actual, _ = token_logprobs(hidden, head, targets, 0.7, chunk_tokens=10)
    gradients = torch.autograd.grad(actual.sum(), (hidden, head))
    logprobs.adds_to_float32.cache_clear()
    assert products.count("addmm") == (4 if adds else 0), "three, and one to try it"
    monkeypatch.undo()
    expected, _ = plainly(hidden, head, targets, 0.7)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    exact = torch.autograd.grad(expected.sum(), (hidden, head))
    for mine, plain in zip(gradients, exact, strict=True):
        assert mine.dtype == torch.bfloat16
        torch.testing.assert_close(mine, plain, atol=0.05, rtol=0.02)


@pytest.mark.parametrize("with_entropy", [False, True])
def test_memory_on_a_gpu_does_not_grow_with_tokens_times_vocabulary(as_on_a_gpu, with_entropy) -> None:
    as_on_a_gpu(lambda function: function)
    less, more = (most_bytes(tokens, with_entropy) for tokens in (2000, 4000))
    assert more - less <= 2000 * 4 * 40, "some numbers per token, of 1,000 logits"


TOKENS, VOCABULARY = 24, 1000
OPTIONS: tuple[Any, ...] = (0.7, None)
"""Temperature, and no cap."""


def arguments_of(function: Any, with_entropy: bool) -> tuple[Any, ...]:
    logits, targets = torch.randn(TOKENS, VOCABULARY), torch.randint(VOCABULARY, (TOKENS,))
    if function is token_values:
        return logits, targets, *OPTIONS, with_entropy, False
    normalizer, *rest = (torch.randn(TOKENS) for _ in range(4))
    gradients = TokenGradients(rest[0], *(rest[1:] if with_entropy else (None, None)))
    return logits, targets, normalizer, gradients, *OPTIONS, torch.bfloat16, False


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize(
    ("function", "passes", "made"), [(token_values, 2, []), (logit_gradient, 1, ["torch.bfloat16"])]
)
def test_a_compiled_kernel_passes_over_the_logits_once_or_twice(
    monkeypatch, function, passes, made, with_entropy
) -> None:
    """In the code that torch's compiler generates. The entropy takes no further pass, and no kernel a tensor of the
    size of the logits, but for the gradient in the precision of the model."""
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering

    codes: list[str] = []

    def generate(graph: GraphLowering) -> None:
        codes.append(graph.codegen()[0].value)
        raise InterruptedError("compiling it takes long")

    monkeypatch.setattr(GraphLowering, "compile_to_module", generate)
    with config.patch({"cpp.simdlen": 1, "fx_graph_cache": False}), pytest.raises(Exception, match="takes long"):
        compile_function(function, dynamic=False)(*arguments_of(function, with_entropy))
    (code,) = codes
    assert code.count("void  kernel(") == 1
    assert len(re.findall(rf"for\(.*<static_cast<int64_t>\({VOCABULARY}L\)", code)) == passes
    assert allocated(code) == made


def allocated(code: str) -> list[str]:
    """Types of the buffers in generated code that have the shape of the logits."""
    lines = [line for line in code.splitlines() if "= empty_strided" in line]
    return [line.split(", ")[-1].rstrip(")") for line in lines if f"({TOKENS}, {VOCABULARY})" in line]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
def test_what_a_compiler_makes_of_the_kernels_computes_the_same() -> None:
    values, gradient = cast(Any, token_values), cast(Any, logit_gradient)
    logits, targets, *options, _ = arguments_of(token_values, True)
    expected = values(logits.clone(), targets, *options, True)
    actual = compile_function(values)(logits, targets, *options, False)
    for mine, plain in zip(actual[:2], expected[:2], strict=True):
        torch.testing.assert_close(mine, plain, atol=1e-5, rtol=1e-5)
    gradients = TokenGradients(torch.randn(TOKENS), torch.randn(TOKENS), expected.entropy_C)
    rest = (gradients, *OPTIONS, torch.bfloat16)
    grad = compile_function(gradient)(logits, targets, actual.normalizer_C, *rest, False)
    torch.testing.assert_close(grad, gradient(logits.clone(), targets, None, *rest, True), atol=1e-4, rtol=1e-2)


def test_what_is_missing_for_compiling_is_said_once(monkeypatch, caplog) -> None:
    can_compile.cache_clear()
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    try:
        with caplog.at_level(logging.WARNING):
            assert not compiles("cpu") and not caplog.records
            assert not compiles("cuda") and not compiles("cuda")
        (record,) = caplog.records
        assert "Triton and a C compiler" in record.getMessage()
        can_compile.cache_clear()
        monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
        monkeypatch.setattr(sysconfig, "get_path", lambda name: str(caplog))
        assert not compiles("cuda") and "the headers of Python" in caplog.records[-1].getMessage()
    finally:
        can_compile.cache_clear()
