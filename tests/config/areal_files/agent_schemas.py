"""User schemas of AReaL's agent examples: top-level keys, a new section, an extended section."""

from dataclasses import dataclass, field

from areal_like.config.experiment import GRPOConfig
from areal_like.config.fields import config, key, section
from areal_like.config.sections.rollout import InferenceEngineConfig


@dataclass
class SearchAgentConfig(GRPOConfig):
    max_turns: int = 128


@config
class DeepResearchConfig(GRPOConfig):
    """An agent that is judged by a model."""

    n_trajs: int = key(1, ge=1)
    """Trajectories of each question."""

    max_llm_calls_per_run: int = key(100, ge=1)
    """Calls of the model in one trajectory."""

    max_tokens_per_trajectory: int = key(32768, ge=1)
    """Tokens in one trajectory."""

    log_agent_stats: bool = key(False)
    """Log what the agent did."""

    judge_engine: InferenceEngineConfig = section(InferenceEngineConfig)
    """A second engine beside `rollout`; it may have a separate experiment name."""


@dataclass
class ToolsConfig:
    max_turns: int = 2
    max_length: int = 3000
    tool_timeout: float = 30
    enable_tools: str = "python"


@dataclass
class ToolIntegratedConfig(GRPOConfig):
    tir: ToolsConfig = field(default_factory=ToolsConfig)
