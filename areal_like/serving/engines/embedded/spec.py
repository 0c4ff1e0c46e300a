"""What the launcher and the servers know of the embedded engine."""

from areal_like.config.sections.engines.embedded import KEYS
from areal_like.serving.engines.spec import EngineSpec

SPEC = EngineSpec(KEYS)
