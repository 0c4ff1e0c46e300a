"""Resolves `attn_impl: auto`: the fastest attention over packed sequences for device, precision and installed packages.
Without torch, as the plan uses it too."""

from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

FLASH_DTYPES = ("bfloat16", "float16")
HOPPER = ("H100", "H200", "H800", "H20", "GH200")
BLACKWELL = ("B100", "B200", "GB200", "B300", "GB300")
PACKAGES = ("flash_attn", "flash_attn_interface")
"""Of flash attention 2 and 3."""
MIN_CUDNN = 91501
"""9.15.1: earlier versions are wrong for some lengths that are no multiple of 128."""
MIN_BATCH_LENGTH = 1024
"""Shorter sequences take little time in attention."""
CUDNN_BATCHES = f"micro-batches of one sequence, or of equal lengths, of {MIN_BATCH_LENGTH:,} tokens or more"


def installed_packages() -> frozenset[str]:
    """The installed ones of the packages."""
    return frozenset(name for name in PACKAGES if find_spec(name) is not None)


def beyond_kernels(model_config: Mapping[str, Any] | None, disable_dropout: bool) -> str:
    """What torch's kernels for packed sequences lack for a model with this config.json, such as Gemma 2; or nothing."""
    text = (model_config or {}).get("text_config")
    values = text if isinstance(text, Mapping) else model_config or {}
    if values.get("attn_logit_softcapping") is not None:
        return "caps its attention scores"
    return "uses attention dropout" if values.get("attention_dropout") and not disable_dropout else ""


def choose_attention(dtype: str, gpus: Sequence[str], packages: Collection[str], beyond: str = "") -> tuple[str, str]:
    """The value, and the reason. `gpus` are the names of the trainer's GPUs, `beyond` is of `beyond_kernels`."""
    if not gpus:
        return "sdpa", "no GPU: torch's own attention, one packed sequence after the other"
    if dtype not in FLASH_DTYPES:
        return "sdpa", f"flash attention does not compute in {dtype}: torch's memory-efficient kernel"
    if beyond and "flash_attn" in packages:
        return "flash_attention_2", f"the model {beyond}, and flash_attn is installed"
    if beyond:
        return "sdpa", f"the model {beyond}: torch's own attention, some tokens at a time; flash_attn would be faster"
    if "flash_attn_interface" in packages and _are_all(gpus, HOPPER):
        return "flash_attention_3", f"flash_attn 3 is installed and {gpus[0]} can run it"
    if _are_all(gpus, (*HOPPER, *BLACKWELL)):
        major, minor, patch = MIN_CUDNN // 10000, MIN_CUDNN // 100 % 100, MIN_CUDNN % 100
        cudnn = f"cuDNN, from {major}.{minor}.{patch} on, for {CUDNN_BATCHES}"
        return "sdpa", f"torch's kernels: {cudnn}; flash for others"
    return "sdpa", "torch's flash kernel for packed sequences"


def _are_all(gpus: Sequence[str], models: Collection[str]) -> bool:
    return all(any(word in models for word in gpu.split()) for gpu in gpus)
