"""Values of SGLang's `auto` keys: on a GPU fast for groups of samples, on a CPU AReaL's defaults."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from areal_like.config.sections.engines.sglang import SGLangConfig

SHARED = "on a GPU: the samples of a group share one prompt; each weight update empties it"
IN_ORDER = "requests have priorities, which SGLang supports only with fcfs and lof"


def auto_values(on_gpu: bool) -> dict[str, tuple[Any, str]]:
    """Key -> value and reason."""
    radix = (False, SHARED) if on_gpu else (True, "on a CPU: AReaL's default")
    return {"disable_radix_cache": radix, "schedule_policy": ("fcfs", IN_ORDER)}


def resolved_value(sglang: "SGLangConfig", name: str, on_gpu: bool) -> Any:
    """The configured value, or that of `auto`."""
    value: Any = getattr(sglang, name)
    return auto_values(on_gpu)[name][0] if value == "auto" else value
