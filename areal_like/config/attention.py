"""Resolves `attn_impl: auto`: the fastest attention over packed sequences for device, precision and installed packages.
Without torch, as the plan uses it too."""

from collections.abc import Collection, Sequence
from importlib.util import find_spec

FLASH_DTYPES = ("bfloat16", "float16")
HOPPER = ("H100", "H200", "H800", "H20", "GH200")
PACKAGES = ("flash_attn", "flash_attn_interface")
"""Of flash attention 2 and 3."""


def installed_packages() -> frozenset[str]:
    """The installed ones of the packages."""
    return frozenset(name for name in PACKAGES if find_spec(name) is not None)


def choose_attention(dtype: str, gpus: Sequence[str], packages: Collection[str]) -> tuple[str, str]:
    """The value, and the reason. `gpus` are the names of the trainer's GPUs."""
    if not gpus:
        return "sdpa", "no GPU: torch's own attention, one packed sequence after the other"
    if dtype not in FLASH_DTYPES:
        return "sdpa", f"flash attention does not compute in {dtype}: torch's own, one packed sequence after the other"
    if "flash_attn_interface" in packages and all(any(word in gpu.split() for word in HOPPER) for gpu in gpus):
        return "flash_attention_3", f"flash_attn 3 is installed and {gpus[0]} can run it"
    if "flash_attn" in packages:
        return "flash_attention_2", "flash_attn is installed: attention over packed sequences of any length"
    return "sdpa", "flash_attn is not installed: torch's own flash kernel for packed sequences"
