"""Values of an engine's `auto` keys that depend on one question alone: whether its servers have GPUs."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from areal_like.serving.engines.engine_site import EngineSite

if TYPE_CHECKING:
    from areal_like.config.experiment import GRPOConfig

Values = Mapping[str, tuple[Any, str]]
"""Key -> value and reason."""


class AutoTable(NamedTuple):
    section: str
    on_gpu: Values
    on_cpu: Values

    def resolve(self, config: "GRPOConfig", site: EngineSite) -> Iterator[tuple[str, Any, str]]:
        """The keys that are `auto`."""
        for name, (value, reason) in (self.on_gpu if site.on_gpu else self.on_cpu).items():
            if getattr(getattr(config, self.section), name) == "auto":
                yield f"{self.section}.{name}", value, reason

    def value_of(self, section: Any, name: str, on_gpu: bool) -> Any:
        """The configured value, or that of `auto`."""
        value = getattr(section, name)
        return (self.on_gpu if on_gpu else self.on_cpu)[name][0] if value == "auto" else value
