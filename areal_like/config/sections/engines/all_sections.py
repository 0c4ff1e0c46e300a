"""The sections of the engines in an experiment."""

from areal_like.config.fields import config, section
from areal_like.config.sections.engines.embedded import EmbeddedConfig
from areal_like.config.sections.engines.sglang import SGLangConfig
from areal_like.config.sections.engines.vllm import vLLMConfig


@config
class EngineSections:
    """For experiments without servers, whose files may have them nevertheless."""

    sglang: SGLangConfig = section(SGLangConfig)
    """Settings of SGLang servers; used only if they run."""

    vllm: vLLMConfig = section(vLLMConfig)
    """Settings of vLLM servers; used only if they run."""

    embedded: EmbeddedConfig = section(EmbeddedConfig)
    """Settings of the embedded inference engine; used only if it runs."""


@config
class PolicyEngineSections(EngineSections):
    """For experiments whose servers generate with the model of `actor`."""

    sglang: SGLangConfig = section(
        SGLangConfig, model_path="${actor.path}", random_seed="${seed}", dtype="${actor.dtype}"
    )
    """Settings of SGLang servers; used only if they run."""

    vllm: vLLMConfig = section(
        vLLMConfig,
        model="${actor.path}",
        seed="${seed}",
        dtype="${actor.dtype}",
        trust_remote_code="${actor.trust_remote_code}",
    )
    """Settings of vLLM servers; used only if they run."""

    embedded: EmbeddedConfig = section(
        EmbeddedConfig, model_path="${actor.path}", dtype="${actor.dtype}", seed="${seed}"
    )
    """Settings of the embedded inference engine; used only if it runs."""
