"""What `auto` becomes for SGLang: on a GPU what serves groups of samples fast, on a CPU what AReaL has."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from areal_like.config.sections.engines.sglang import SGLangConfig

SHARED = "on a GPU: the samples of a group share one prompt; each weight update empties it"
IN_ORDER = "requests go by their priority, which SGLang knows under fcfs and lof alone"


def auto_values(on_gpu: bool) -> dict[str, tuple[Any, str]]:
    """Key -> its value and the reason."""
    radix = (False, SHARED) if on_gpu else (True, "on a CPU: as AReaL has it")
    return {"disable_radix_cache": radix, "schedule_policy": ("fcfs", IN_ORDER)}


def resolved_value(sglang: "SGLangConfig", name: str, on_gpu: bool) -> Any:
    """The value of a key, decided where it is left open."""
    value: Any = getattr(sglang, name)
    return auto_values(on_gpu)[name][0] if value == "auto" else value
