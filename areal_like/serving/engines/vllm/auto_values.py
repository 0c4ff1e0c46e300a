"""Values of vLLM's `auto` keys: on a GPU fast for groups of samples, on a CPU what works."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from areal_like.config.sections.engines.vllm import vLLMConfig

ON_GPU: dict[str, tuple[bool, str]] = {
    "enforce_eager": (False, "on a GPU: compiled, and decoding replays CUDA graphs"),
    "enable_chunked_prefill": (True, "on a GPU: long prompts are computed between decoding steps"),
    "enable_prefix_caching": (True, "on a GPU: the samples of a group share one prompt; each weight update empties it"),
}
"""Key -> value and reason."""
ON_CPU: dict[str, tuple[bool, str]] = {
    "enforce_eager": (True, "on a CPU: compiling takes longer than it saves"),
    "enable_chunked_prefill": (False, "on a CPU: vLLM 0.32 crashes with it and seeded requests"),
    "enable_prefix_caching": (False, "on a CPU: AReaL's default"),
}


def auto_values(on_gpu: bool) -> dict[str, tuple[bool, str]]:
    return ON_GPU if on_gpu else ON_CPU


def resolved_value(vllm: "vLLMConfig", name: str, on_gpu: bool) -> bool:
    """The configured value, or that of `auto`."""
    value: Any = getattr(vllm, name)
    return auto_values(on_gpu)[name][0] if value == "auto" else bool(value)
