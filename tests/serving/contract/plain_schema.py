"""A module for `--schema`: an engine of the user's own. Imports no torch, as the launcher and every process of a run
import it."""

from collections.abc import Iterator

from areal_like import EngineKeys, EngineSpec, register_engine
from areal_like.config.checks.registry import Check
from areal_like.config.experiment import GRPOConfig
from areal_like.config.fields import config, key, section
from areal_like.config.problems import Problem, Stage


@config
class PlainConfig:
    """An engine that computes one token of one answer at a time."""

    model: str = key("")
    """Model to serve. Follows `actor.path`."""

    dtype: str = key("float32")
    """Data type of the weights. Follows `actor.dtype`."""

    max_length: int | None = key(None, ge=1)
    """Maximum length of prompt and answer. Null: that of the model."""

    answers_backwards: bool = key(False)
    """Not possible."""


@config
class PlainGRPOConfig(GRPOConfig):
    """GRPO with the engine `plain`."""

    plain: PlainConfig = section(PlainConfig, model="${actor.path}", dtype="${actor.dtype}")
    """Settings of the engine `plain`; used only if it runs."""


def backwards(config: PlainGRPOConfig) -> Iterator[Problem]:
    if config.plain.answers_backwards:
        yield Problem("plain.answers_backwards", "no engine can do that; set it to false")


KEYS = EngineKeys(
    "plain", "Plain", model_key="plain.model", length_key="plain.max_length", dtype_key="plain.dtype", dims="d"
)
SPEC = EngineSpec(
    KEYS,
    cannot_keep="which continues an answer by a new request after an update",
    checks=(Check("a direction", Stage.CANNOT_START, backwards),),
)
register_engine(SPEC)
