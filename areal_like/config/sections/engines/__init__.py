"""The inference engines that come with the package: a section each, and what its keys mean. The first needs no
installation."""

from areal_like.config.sections.engines import embedded, sglang, vllm

SHIPPED = (embedded.KEYS, sglang.KEYS, vllm.KEYS)
