"""Kernels of a GPU, driven on a CPU: which is chosen, what it is called with, and what memory that takes. torch's own
functions run as they are; the kernels below them are stand-ins with the same signatures."""

import importlib.util
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.varlen import varlen_attn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from areal_like.config.problems import ConfigError
from areal_like.config.sections.train_engine import CompileConfig, TrainEngineConfig
from areal_like.training import attention, attention_kernels, efficient_attention, torch_compile
from areal_like.training.attention import packed_attention
from areal_like.training.attention_kernels import Capability, Kernel, describe_kernels
from areal_like.training.length_groups import group_by_length, length_padding
from areal_like.training.sequences import Sequences
from areal_like.training.torch_compile import OPAQUE_ATTENTION
from tests.support.training_runs import make_engine, model_folder, section, world

H100 = Capability(9, has_cudnn=True, has_flash_3=False)
A100 = Capability(8, has_cudnn=False, has_flash_3=False)
V100 = Capability(7, has_cudnn=False, has_flash_3=False)
LENGTHS = [5, 5, 9, 30]


def visible(num: int, window: int) -> Tensor:
    behind = torch.arange(num)[:, None] - torch.arange(num)[None, :]
    return (behind >= 0) & (behind < (window if window > 0 else num))


def probabilities(q: Tensor, k: Tensor, scale: float, window: int) -> Tensor:
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    return scores.masked_fill(~visible(len(q), window), float("-inf")).softmax(-1)


def forward(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, scale: float, window: int) -> Tensor:
    """Of [T, heads, head size], as a kernel does it that groups heads by itself."""
    k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
    spans = [slice(*pair) for pair in zip(ends.tolist(), ends.tolist()[1:], strict=False)]
    return torch.cat([torch.einsum("hqk,khd->qhd", probabilities(q[s], k[s], scale, window), v[s]) for s in spans])


def backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, ends: Tensor, scale: float, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    heads, kinds = k.shape[1], q.shape[1] // k.shape[1]
    k, v = (part.repeat_interleave(kinds, 1) for part in (k, v))
    out: list[list[Tensor]] = [[], [], []]
    for start, end in zip(ends.tolist(), ends.tolist()[1:], strict=False):
        one_q, one_k, one_v, one_gradient = (part[start:end] for part in (q, k, v, gradient))
        weight = probabilities(one_q, one_k, scale, window)
        of_weight = torch.einsum("qhd,khd->hqk", one_gradient, one_v)
        of_scores = weight * (of_weight - (weight * of_weight).sum(-1, keepdim=True)) * scale
        out[0].append(torch.einsum("hqk,khd->qhd", of_scores, one_k))
        out[1].append(torch.einsum("hqk,qhd->khd", of_scores, one_q))
        out[2].append(torch.einsum("hqk,qhd->khd", weight, one_gradient))
    of_q, of_k, of_v = (torch.cat(parts) for parts in out)
    return of_q, of_k.unflatten(1, (heads, kinds)).sum(2), of_v.unflatten(1, (heads, kinds)).sum(2)


def flash_forward(q, k, v, ends, _ends, longest, _longest, dropout, is_causal, return_debug_mask, **named):
    window = named["window_size_left"] + 1
    assert is_causal == (window == 0) and named["window_size_right"] == 0
    out, none = forward(q, k, v, ends, named["scale"], window), q.new_zeros(0)
    return out, q.new_zeros(q.shape[1], len(q)), none, none, none


def flash_backward(gradient, q, k, v, out, lse, ends, _ends, longest, _longest, dropout, is_causal, *unused, **named):
    return backward(gradient, q, k, v, ends, named["scale"], named["window_size_left"] + 1)


def efficient_forward(q, k, v, bias, ends, _ends, longest, _longest, dropout, mask, with_lse=False, **named):
    assert q.shape[2] == k.shape[2] == v.shape[2] and mask == efficient_attention.CAUSAL
    out, none = forward(q[0], k[0], v[0], ends, named["scale"], named.get("window_size") or 0)[None], q.new_zeros(0)
    rounded = (longest + 31) // 32 * 32
    return out, q.new_zeros(len(ends) - 1, q.shape[2], rounded), none, none, longest, longest


def efficient_backward(gradient, q, k, v, bias, out, ends, *others, **named):
    parts = backward(gradient[0], q[0], k[0], v[0], ends, named["scale"], named.get("window_size") or 0)
    return (*(part[None] for part in parts), q.new_zeros(0))


@pytest.fixture
def kernels() -> Iterator[None]:
    """Stand-ins for a GPU's kernels, below torch's own functions."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name, function in (
            ("_flash_attention_forward", flash_forward),
            ("_flash_attention_backward", flash_backward),
            ("_efficient_attention_forward", efficient_forward),
            ("_efficient_attention_backward", efficient_backward),
        ):
            library.impl(name, function, "CPU")
        yield


def on_gpu(monkeypatch: pytest.MonkeyPatch, gpu: Capability, half: bool = False) -> None:
    """Every device is this GPU; with `half` the numbers of these tests count as half precision."""
    monkeypatch.setattr(attention_kernels, "capability", lambda device: gpu)
    for module in (attention_kernels, attention, torch_compile):
        monkeypatch.setattr(module, "is_gpu", lambda device: True)
    monkeypatch.setattr(torch_compile, "lacking_for_kernels", list)
    if half:
        monkeypatch.setattr(attention_kernels, "HALF", (torch.float32,))


def inputs(lengths: list[int], value_size: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Four query heads and two of keys."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((4, 8), (2, 8), (2, value_size))
    q, k, v = (torch.randn(1, heads, sum(lengths), size, generator=generator) for heads, size in sizes)
    return q, k, v


def attended(
    lengths: list[int], tensors: tuple[Tensor, ...], function: Any = packed_attention, **given: Any
) -> list[Tensor]:
    """Output and gradients."""
    q, k, v = (tensor.clone().requires_grad_() for tensor in tensors)
    ends = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    bounds = {"length_groups": group_by_length(lengths), "cu_seq_lens_q": ends, "max_length_q": max(lengths)}
    out = function(nn.Identity(), q, k, v, None, 0.3, **bounds, **given)[0]
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), (q, k, v))]


@pytest.mark.parametrize("value_size", [8, 4])
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("gpu", ["flash", "efficient"])
def test_kernels_get_what_makes_them_compute_the_same_as_a_cpu(monkeypatch, kernels, gpu, window, value_size):
    """Grouped heads, windows, and values smaller than keys, as latent attention has them."""
    tensors = inputs(LENGTHS, value_size)
    expected = attended(LENGTHS, tensors, sliding_window=window)
    on_gpu(monkeypatch, A100, half=gpu == "flash")

    torch.testing.assert_close(attended(LENGTHS, tensors, sliding_window=window), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("lengths", [[1500], [1100, 1100]])
def test_one_sequence_or_equal_lengths_are_one_padded_batch_for_cudnn(monkeypatch, lengths):
    tensors, calls = inputs(lengths), []
    expected = attended(lengths, tensors)
    usual = F.scaled_dot_product_attention

    def watched(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:
        calls.append((tuple(q.shape), tuple(k.shape), torch._C._get_sdp_priority_order()[0], given["is_causal"]))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return usual(q, k, v, **given)

    on_gpu(monkeypatch, H100, half=True)
    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    actual = attended(lengths, tensors)

    padded = lengths[0] + length_padding(lengths[0])
    shapes = ((len(lengths), 4, padded, 8), (len(lengths), 2, padded, 8))
    cudnn: Any = torch.nn.attention.SDPBackend.CUDNN_ATTENTION
    assert calls == [(*shapes, int(cudnn), True)]
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def test_padding_gives_few_lengths_and_is_never_what_the_compiler_takes_for_a_constant():
    lengths = range(1024, 32769)
    padding = [length_padding(length) for length in lengths]

    assert min(padding) > 1
    assert len({length + more for length, more in zip(lengths, padding, strict=True)}) < 80
    assert all(more <= max(length / 8, 130) for length, more in zip(lengths, padding, strict=True))


@pytest.mark.parametrize(
    ("gpu", "dtype", "lengths", "window", "expected"),
    [
        (H100, torch.bfloat16, [2000], None, Kernel.CUDNN),
        (H100, torch.bfloat16, [2000, 2000], None, Kernel.CUDNN),
        (H100, torch.bfloat16, [2000], 100, Kernel.FLASH),
        (H100, torch.bfloat16, [2000, 2001], None, Kernel.FLASH),
        (H100, torch.bfloat16, [20, 20], None, Kernel.FLASH),
        (H100._replace(has_flash_3=True), torch.bfloat16, [2000], None, Kernel.FLASH),
        (A100, torch.float16, [2000], None, Kernel.FLASH),
        (H100, torch.float32, [2000], None, Kernel.EFFICIENT),
        (V100, torch.float16, [2000], None, Kernel.EFFICIENT),
        (V100, torch.bfloat16, [2000], None, None),
    ],
)
def test_the_kernel_follows_from_gpu_precision_lengths_and_window(monkeypatch, gpu, dtype, lengths, window, expected):
    on_gpu(monkeypatch, gpu)
    query = torch.zeros(1, 2, 4, 64, dtype=dtype)

    assert attention_kernels.choose_kernel(query, query, group_by_length(lengths), window) == expected
    described = describe_kernels(torch.device("cpu"), dtype)
    assert expected is None or expected in described


@pytest.mark.parametrize(
    ("size", "value_size", "expected"),
    [
        (128, 128, Kernel.CUDNN),
        (192, 128, Kernel.FLASH),
        (256, 256, Kernel.FLASH),
        (512, 512, Kernel.EFFICIENT),
        (64, 128, Kernel.EFFICIENT),
        (60, 60, None),
    ],
)
def test_the_kernel_supports_the_sizes_of_the_heads(monkeypatch, size, value_size, expected):
    on_gpu(monkeypatch, H100)
    query, value = (torch.zeros(1, 2, 4, each, dtype=torch.bfloat16) for each in (size, value_size))
    assert attention_kernels.choose_kernel(query, value, group_by_length([2000]), None) == expected


@pytest.fixture
def gpu(monkeypatch) -> Iterator[Any]:
    """What a GPU of this compute capability can do, with this version of cuDNN and these packages."""

    def choose(major: int, cudnn: int, packages: tuple[str, ...] = ()) -> tuple[bool, Capability | None]:
        attention_kernels._capability.cache_clear()
        active.clear()
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=major))
        monkeypatch.setattr(torch.backends.cudnn, "version", lambda: cudnn)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in packages else None)
        device = torch.device("cuda", 0)
        assert attention_kernels.capability(device) is not None
        return attention_kernels.activate_flash_3(device), attention_kernels.capability(device)

    active: list[str] = []
    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", active.append)
    monkeypatch.setattr(torch.nn.attention, "current_flash_attention_impl", lambda: active[-1] if active else None)
    yield choose
    attention_kernels._capability.cache_clear()


def test_cudnn_is_used_where_it_is_right_and_fast(gpu):
    assert gpu(9, 91501)[1] == gpu(10, 91900)[1]._replace(major=9) == H100
    assert gpu(9, 91500)[1] == H100._replace(has_cudnn=False), "wrong for some lengths"
    assert gpu(8, 91900)[1] == A100 and gpu(12, 91900)[1] == A100._replace(major=12)


def test_flash_attention_3_is_used_where_it_is_installed_on_hopper(gpu):
    package = ("flash_attn_interface",)
    assert gpu(9, 91900, package) == (True, H100._replace(has_flash_3=True))
    assert gpu(9, 91900) == (False, H100) and gpu(10, 91900, package) == (False, H100._replace(major=10))
    assert gpu(8, 91900, package) == (False, A100)


def test_flash_attention_3_that_does_not_work_is_named_and_not_used(tmp_path, monkeypatch, gpu, caplog):
    def broken(name: str) -> None:
        raise RuntimeError("Module 'flash_attn_interface' does not expose FA3 backward kernels")

    flags: list[bool] = []
    gpu(9, 91900, ("flash_attn_interface",))
    monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", broken)
    monkeypatch.setattr(torch._C, "_set_sdp_use_fa3", flags.append)
    config = section(TrainEngineConfig, attn_impl="flash_attention_3", dtype="bfloat16")
    value = attention.resolve_attention(config, "actor", torch.device("cuda", 0), model_folder(tmp_path, "qwen3"))
    assert value == "sdpa" and flags == [False]
    assert "actor.attn_impl: flash attention 3 is installed and does not work" in caplog.text
    assert "FA3 backward kernels" in caplog.text


def of_torch_2_10(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, return_aux=None):
    raise AssertionError("without scale and window it would compute something else")


def of_torch_2_11(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)
):
    assert window_size == (6, 0)
    return forward(query, key, value, cu_seq_q, scale, 7)


def of_torch_2_13(*positional, scale=None, window_size=(-1, -1), enable_gqa=False, **others):
    assert enable_gqa, "it would refuse fewer key than query heads"
    return varlen_attn(*positional, scale=scale, window_size=window_size, enable_gqa=enable_gqa)


@pytest.mark.parametrize("function", [of_torch_2_10, of_torch_2_11, of_torch_2_13])
def test_varlen_attention_is_called_as_the_installed_torch_defines_it(monkeypatch, kernels, function):
    tensors = inputs(LENGTHS)
    expected = attended(LENGTHS, tensors, sliding_window=7)
    on_gpu(monkeypatch, A100, half=True)
    monkeypatch.setattr(attention_kernels, "varlen_attn", function)
    monkeypatch.setattr(attention_kernels, "VARLEN_PARAMETERS", attention_kernels.parameters_of(function))

    torch.testing.assert_close(attended(LENGTHS, tensors, sliding_window=7), expected, atol=1e-5, rtol=1e-5)


class Largest(TorchDispatchMode):
    """The largest tensor that an operation returns, in elements."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.elements = max(self.elements, leaf.numel())
        return out


@pytest.mark.parametrize(
    "given",
    [{}, {"sliding_window": 4096}, {"softcap": 50.0}, {"softcap": 50.0, "sliding_window": 4096}],
    ids=["whole", "window", "softcap", "softcap and window"],
)
def test_no_tensor_on_a_gpu_in_float32_grows_with_the_square_of_the_length(monkeypatch, given):
    """The matrix of 16k tokens and 2 heads would have 2**29 elements."""
    on_gpu(monkeypatch, H100)
    length = 2**14
    with FakeTensorMode(), Largest() as largest:
        q = torch.empty(1, 2, length, 64, requires_grad=True)
        k, v = (torch.empty(1, 1, length, 64, requires_grad=True) for _ in range(2))
        ends = torch.empty(2, dtype=torch.int32)
        bounds: Any = {"length_groups": group_by_length([length]), "cu_seq_lens_q": ends, "max_length_q": length}
        out = packed_attention(nn.Identity(), q, k, v, None, 0.1, **bounds, **given)[0]
        out.backward(torch.empty_like(out))

    assert out.shape == (1, length, 2, 64) and k.grad is not None and k.grad.shape == k.shape
    assert largest.elements <= (attention.MAX_SCORES if given else q.numel())


@pytest.mark.parametrize("given", [{"softcap": 5.0}, {"softcap": 5.0, "sliding_window": 7}, {"is_eager": True}])
def test_attention_in_chunks_is_that_of_the_whole(monkeypatch, given):
    tensors = inputs(LENGTHS)
    expected = attended(LENGTHS, tensors, **given)
    on_gpu(monkeypatch, H100, half=True)
    monkeypatch.setattr(attention, "MAX_SCORES", 4 * 30 * 11)

    torch.testing.assert_close(attended(LENGTHS, tensors, **given), expected, atol=1e-5, rtol=1e-5)


def micro_batch(lengths: list[int]) -> Any:
    ids = np.random.default_rng(0).integers(0, 40, sum(lengths)).astype(np.int32)
    return Sequences(ids, ids >= 0, np.array(lengths)).micro_batch(range(len(lengths)), world().device)


def test_what_hooks_of_layers_walk_through_does_not_grow_with_the_number_of_sequences():
    few, many = (micro_batch(list(range(2, num + 2))).attention_kwargs() for num in (2, 512))

    assert len(many["length_groups"]) == 512
    assert len(tree_leaves(many)) == len(tree_leaves(few)) == 5


@pytest.fixture
def as_captured(monkeypatch) -> None:
    """Layers are captured and run as graphs, but not turned into machine code."""
    usual = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda *given, **how: usual(*given, **how, backend="eager"))
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by torch's compiler
def test_layers_for_a_gpu_are_one_graph_for_sequences_of_any_lengths(tmp_path, monkeypatch, kernels, as_captured):
    folder = model_folder(tmp_path, "qwen3")
    usual = make_engine(folder)
    on_gpu(monkeypatch, A100, half=True)
    counters.clear()
    engine = make_engine(folder, compile=section(CompileConfig, fullgraph=True))
    for lengths in ([3, 9, 2], [11], [4, 4, 4, 7], [5, 5]):
        micro = micro_batch(lengths)
        torch.testing.assert_close(engine.logprobs([micro], 1.0), usual.logprobs([micro], 1.0), atol=1e-5, rtol=1e-5)

    assert engine.model.config._attn_implementation != OPAQUE_ATTENTION
    assert counters["stats"]["unique_graphs"] == 2, "for training and evaluation, both of the rehearsal"
    assert not counters["graph_break"]


@pytest.mark.slow
@pytest.mark.parametrize(("gpu", "num_graphs"), [("efficient", 2), ("cudnn", 3)])
def test_kernels_are_compiled_once_for_lengths_of_their_kind(monkeypatch, kernels, gpu, num_graphs):
    """One sequence, several of equal length and several of different lengths; the latter two are one kind for kernels
    other than cuDNN's."""
    batches = ([1030], [1500], [1030, 1030], [1200, 1200, 1200], [1030, 7, 9], [60, 70, 80, 90])
    usual = [attended(list(lengths), inputs(list(lengths))) for lengths in batches]
    on_gpu(monkeypatch, H100, half=gpu == "cudnn")
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(packed_attention, fullgraph=True, dynamic=True, backend="aot_eager")
    for lengths, expected in zip(batches, usual, strict=True):
        actual = attended(list(lengths), inputs(list(lengths)), function=compiled)
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)

    assert counters["stats"]["unique_graphs"] == num_graphs


def test_whole_graphs_are_refused_where_attention_is_not_compiled(tmp_path, monkeypatch):
    on_gpu(monkeypatch, H100)
    with pytest.raises(ConfigError, match=r"actor\.compile\.fullgraph.*capped scores.*fullgraph=false"):
        make_engine(model_folder(tmp_path, "gemma2"), compile=section(CompileConfig, fullgraph=True))
