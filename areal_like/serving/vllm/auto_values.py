"""What `auto` becomes for vLLM's switches: on a GPU what serves groups of samples fast, on a CPU what runs at all."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from areal_like.config.sections.engines.vllm import vLLMConfig

ON_GPU: dict[str, tuple[bool, str]] = {
    "enforce_eager": (False, "on a GPU: compiled, and decoding replays CUDA graphs"),
    "enable_chunked_prefill": (True, "on a GPU: long prompts are read between decoding steps"),
    "enable_prefix_caching": (True, "on a GPU: the samples of a group share one prompt; each weight update empties it"),
}
"""Switch -> its value and the reason."""
ON_CPU: dict[str, tuple[bool, str]] = {
    "enforce_eager": (True, "on a CPU: compiling takes longer than it saves"),
    "enable_chunked_prefill": (False, "on a CPU vLLM 0.32 dies of it with seeded requests"),
    "enable_prefix_caching": (False, "on a CPU: as AReaL has it"),
}


def auto_values(on_gpu: bool) -> dict[str, tuple[bool, str]]:
    return ON_GPU if on_gpu else ON_CPU


def resolved_value(vllm: "vLLMConfig", name: str, on_gpu: bool) -> bool:
    """The value of a switch, decided where it is left open."""
    value: Any = getattr(vllm, name)
    return auto_values(on_gpu)[name][0] if value == "auto" else bool(value)
