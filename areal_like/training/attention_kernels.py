"""Attention kernels of NVIDIA GPUs for packed sequences, and which one is used. None of them holds a matrix of
tokens x tokens.

- flash attention, version 2 or where it is installed 3: half precision, sequences of any lengths
- cuDNN: faster on Hopper and Blackwell than version 2, for one sequence or several of equal length
- memory-efficient attention: float32, and GPUs or head sizes that flash attention does not support

Written from torch's sources; never run on a GPU.
"""

import functools
import importlib.util
import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import attention as torch_attention
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.varlen import varlen_attn

from areal_like.config.attention import CUDNN_BATCHES, MIN_CUDNN
from areal_like.training.efficient_attention import efficient_attention
from areal_like.training.length_groups import LengthGroups

HALF = (torch.bfloat16, torch.float16)
MAX_FLASH_HEAD = 256
MAX_CUDNN_HEAD = 128
AMPERE, HOPPER, BLACKWELL = 8, 9, 10
"""Major versions of the compute capability."""


class Kernel(StrEnum):
    """Names for messages."""

    CUDNN = "cuDNN"
    FLASH = "flash attention"
    EFFICIENT = "memory-efficient attention"


class Capability(NamedTuple):
    """Of a GPU and the installed packages."""

    major: int
    has_cudnn: bool
    has_flash_3: bool


def parameters_of(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


VARLEN_PARAMETERS = parameters_of(varlen_attn)
"""torch 2.11 has no `enable_gqa`: its kernel takes fewer key than query heads unasked. 2.10 has no `scale` and no
`window_size`, and is not used."""


def is_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def capability(device: torch.device) -> Capability | None:
    """None for a device without these kernels."""
    return _capability(device)


@functools.cache
def _capability(device: torch.device) -> Capability | None:
    if not is_gpu(device) or torch.version.cuda is None:
        return None
    major = torch.cuda.get_device_properties(device).major
    version = torch.backends.cudnn.version() or 0  # type: ignore[no-untyped-call]
    active = getattr(torch_attention, "current_flash_attention_impl", lambda: None)()
    return Capability(major, major in (HOPPER, BLACKWELL) and version >= MIN_CUDNN, active == "FA3")


def activate_flash_3(device: torch.device) -> bool:
    """Makes flash attention 3 torch's kernel for flash attention; False if it is not installed, or torch or the GPU
    does not support that. Raises whatever an installation raises that does not work."""
    activate = getattr(torch_attention, "activate_flash_attention_impl", None)
    found = capability(device)
    is_installed = importlib.util.find_spec("flash_attn_interface") is not None
    if found is None or found.major != HOPPER or activate is None or not is_installed:
        return False
    try:
        activate("FA3")
    except Exception:
        # It is set before the kernels are registered.
        getattr(torch._C, "_set_sdp_use_fa3", lambda _: None)(False)
        raise
    _capability.cache_clear()
    return True


def choose_kernel(query: Tensor, value: Tensor, groups: LengthGroups, window: int | None) -> Kernel | None:
    """For tensors of shape [1, heads, T, head size]; None where no kernel supports them."""
    if (found := capability(query.device)) is None:
        return None
    size, value_size = query.shape[-1], value.shape[-1]
    is_half = query.dtype in HALF and found.major >= AMPERE
    if is_half and value_size <= size <= MAX_FLASH_HEAD and not size % 8 and "window_size" in VARLEN_PARAMETERS:
        is_batch = groups.batch_size > 0 and window is None
        prefers_cudnn = found.has_cudnn and not found.has_flash_3 and size == value_size <= MAX_CUDNN_HEAD
        return Kernel.CUDNN if is_batch and prefers_cudnn else Kernel.FLASH
    step = 4 if query.dtype == torch.float32 else 8
    is_known = is_half or query.dtype in (torch.float32, torch.float16)
    return Kernel.EFFICIENT if is_known and not size % step and not value_size % step else None


def attend(
    kernel: Kernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    groups: LengthGroups,
    ends: Tensor,
    longest: int,
    window: int | None,
    scaling: float,
) -> Tensor:
    """From [1, heads, T, head size] to [1, T, heads, head size]. `ends` has the borders of the sequences, int32."""
    if kernel == Kernel.CUDNN:
        return _batch_attention(query, key, value, groups.batch_size, groups.batch_padding, scaling)
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    call = _flash_attention if kernel == Kernel.FLASH else efficient_attention
    return call(q, k, v, ends, longest, window, scaling)[None]


def _flash_attention(
    q: Tensor, k: Tensor, v: Tensor, ends: Tensor, longest: int, window: int | None, scaling: float
) -> Tensor:
    """Of [T, heads, head size]. The kernel wants values of the size of keys; those of latent attention are smaller."""
    window_size = (-1 if window is None else window - 1, 0)
    options: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in VARLEN_PARAMETERS else {}
    size = v.shape[-1]
    if size < q.shape[-1]:
        v = F.pad(v, (0, q.shape[-1] - size))
    out = varlen_attn(q, k, v, ends, ends, longest, longest, scale=scaling, window_size=window_size, **options)
    assert isinstance(out, Tensor)
    return out[..., :size]


def _batch_attention(q: Tensor, k: Tensor, v: Tensor, num: int, padding: int, scaling: float) -> Tensor:
    """Of `num` sequences of equal length. Padding at their ends changes nothing: attention only looks back."""
    length = q.shape[2] // num

    def batched(tensor: Tensor) -> Tensor:
        """[sequences, heads, padded length, head size]"""
        of_sequences = tensor[0].reshape(tensor.shape[1], num, length, -1).transpose(0, 1)
        return F.pad(of_sequences, (0, 0, 0, padding))

    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        out = F.scaled_dot_product_attention(
            batched(q), batched(k), batched(v), is_causal=True, scale=scaling, enable_gqa=True
        )
    return out[:, :, :length].transpose(1, 2).flatten(0, 1)[None]


def describe_kernels(device: torch.device, dtype: torch.dtype) -> str:
    """Which kernel computes which micro-batches, for the log; empty on a CPU."""
    if (found := capability(device)) is None:
        return ""
    if dtype not in HALF or found.major < AMPERE or "window_size" not in VARLEN_PARAMETERS:
        return str(Kernel.EFFICIENT)
    flash = f"{Kernel.FLASH} {3 if found.has_flash_3 else 2}"
    if found.has_flash_3 or not found.has_cudnn:
        return flash
    return f"{Kernel.CUDNN} for {CUDNN_BATCHES}, {flash} for others"
