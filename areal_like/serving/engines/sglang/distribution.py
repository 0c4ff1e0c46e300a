"""Which versions of SGLang are supported, and under which names it is installed."""

from areal_like.serving.engines.external.installations import EngineDistribution

DISTRIBUTION = EngineDistribution("sglang", "SGLang", ("sglang",), ((0, 5, 21), (0, 5, 22)))
