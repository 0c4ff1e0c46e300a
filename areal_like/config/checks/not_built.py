"""Values that are valid but not built yet: a start refuses them, all at once, with what to use instead."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from areal_like.config.allocation.base import Allocation, ParallelStrategy
from areal_like.config.allocation.grammar import parse_trainer
from areal_like.config.allocation.models import generates, starts_servers, trained_models
from areal_like.config.engines import gpu_engines
from areal_like.config.experiment import GRPOConfig, RWConfig, SFTConfig
from areal_like.config.problems import Problem

if TYPE_CHECKING:
    from areal_like.config.experiment import BaseExperimentConfig

NOT_YET = "is not built yet"


class KeyRule(NamedTuple):
    """`matches` gets a value that is not null; `{}` in the message is that value."""

    key: str
    matches: Callable[[Any], bool]
    message: str


def is_true(value: Any) -> bool:
    return bool(value)


def is_false(value: Any) -> bool:
    return not value


def other_than(*built: Any) -> Callable[[Any], bool]:
    return lambda value: value not in built


RUN_RULES = (
    KeyRule("cluster.type", other_than("local"), f"starting processes by {{}} {NOT_YET}; use local (this machine)"),
    KeyRule("cluster.name_resolve.type", other_than("nfs", "etcd3", "memory"), f"{{}} {NOT_YET}; use nfs or etcd3"),
    KeyRule("rollout.mask_env_responses", is_false, f"training on what an environment wrote {NOT_YET}; set it to true"),
    KeyRule("rollout.trajectory_strategy", other_than("interleaved"), f"{{}} {NOT_YET}; use interleaved"),
    KeyRule(
        "environments.train",
        is_true,
        f"training on environments {NOT_YET}; use a task (task.name) or train_dataset.path",
    ),
    KeyRule("recover.skip_curriculum", is_true, f"a curriculum {NOT_YET}; set it to false"),
    KeyRule("log.data", is_true, f"logging the text of samples {NOT_YET}; set it to false"),
)
"""Rules with full keys. A rule does not apply if a section above its key is null or absent."""

SUPERVISED_RULES = (
    KeyRule(
        "evaluator.n_samples", other_than(1), "supervised training evaluates a loss and samples no answers; set it to 1"
    ),
)

NO_ORDER = "random tokens have no preference; set it to null (sft.yaml measures the same trainer)"
REWARD_MODEL_RULES = (
    KeyRule("train_dataset.fake", is_true, NO_ORDER),
    KeyRule("valid_dataset.fake", is_true, NO_ORDER),
    KeyRule(
        "enable_token_export", is_true, "answers are scored as a whole, and no token is predicted; set it to false"
    ),
)
"""For reward models."""

MODEL_RULES = (KeyRule("model_impl", other_than("hf"), f"{{}} {NOT_YET}; use hf"),)
"""For each model of the trainer; keys are relative to its section."""

NOT_BUILT_SECTIONS = {
    "environments.mix": "training on environments",
    "curriculum": "a curriculum",
    "evaluator.benchmarks": "evaluation on environments",
    "log.environment_level": "training on environments",
}
"""Section or key that nothing reads -> its purpose. Every value that differs from its default is refused."""


def not_built_problems(config: "BaseExperimentConfig", allocation: Allocation | None = None) -> list[Problem]:
    """In the order of importance. Without an allocation the backend keys are used."""
    problems: list[Problem] = []
    problems += _broken_rules(config, "", RUN_RULES)
    problems += _backends(config, allocation)
    for section, what in NOT_BUILT_SECTIONS.items():
        problems += [Problem(key, f"{what} {NOT_YET}; leave it out") for key in changed_keys(config, section)]
    problems += _models(config)
    if generates(config):
        problems += _groups(config)
    if isinstance(config, SFTConfig | RWConfig):
        problems += _broken_rules(config, "", SUPERVISED_RULES)
    if isinstance(config, RWConfig):
        problems += _broken_rules(config, "", REWARD_MODEL_RULES)
    return problems


def _backends(config: "BaseExperimentConfig", allocation: Allocation | None) -> Iterator[Problem]:
    """Unsupported servers and parallelism."""
    if isinstance(config, GRPOConfig) and config.rollout.server_addresses and config.rollout.server_type == "openai":
        message = (
            "an openai service cannot load new weights, and would answer with other weights than those in training"
        )
        titles = " or ".join(keys.title for keys in gpu_engines())
        hint = f"use servers of this framework (python -m launcher --config FILE serve), {titles}"
        yield Problem("rollout.server_type", f"{message}; {hint}")
    seen = set()
    for name, engine in trained_models(config):
        parallel = getattr(allocation, "actor" if name == "model" else name, None)
        if parallel is None and engine.backend not in ("", "auto"):
            parallel = ParallelStrategy.of(parse_trainer(engine.backend))
        if allocation is not None and parallel is not None and parallel.backend != "fsdp":
            continue  # the allocation reports other backends
        if parallel is not None and parallel.world_size != parallel.data and str(parallel) not in seen:
            seen.add(str(parallel))
            message = f"{parallel} needs more than data parallelism, which {NOT_YET}"
            yield Problem(f"{name}.backend", f"{message}; use fsdp:d{parallel.world_size}")


def _models(config: "BaseExperimentConfig") -> Iterator[Problem]:
    """Values that another model takes from the actor are reported once, for the actor."""
    first: set[tuple[str, str]] = set()
    for name, engine in trained_models(config):
        for problem in _broken_rules(engine, name, MODEL_RULES):
            same = (problem.key.removeprefix(f"{name}."), problem.message)
            if same not in first:
                yield problem
            first.add(same)
        if name == "actor" and starts_servers(config) and engine.debug is not None and engine.debug.num_layers:
            hint = "use sft.yaml with model.debug.num_layers to make such a model, and then that as actor.path"
            yield Problem("actor.debug.num_layers", f"serving only the first layers of a model {NOT_YET}; {hint}")


def _groups(config: GRPOConfig) -> Iterator[Problem]:
    """A group is a prompt with its answers; only one group baseline can be used."""
    actor, n_samples = config.actor, config.gconfig.n_samples
    sizes = {"actor.group_size": actor.group_size}
    for name in ("reward_norm", "adv_norm"):
        norm = getattr(actor, name)
        if norm is not None:
            sizes[f"actor.{name}.group_size"] = norm.group_size
    for key, size in sizes.items():
        if size != n_samples:
            message = (
                f"is {size}, but a group is a prompt with all its answers (gconfig.n_samples={n_samples}), however many"
            )
            yield Problem(key, f"{message} a workflow of your own makes of it; leave it out")
    centres = actor.reward_norm is not None and actor.reward_norm.mean_level is not None
    if centres and any(dataclasses.asdict(actor.advantage).values()):
        yield Problem("actor.advantage", "subtracts a group baseline, and so does actor.reward_norm; use one of them")
    if actor.advantage.mean_norm and actor.advantage.std_norm:
        message = "divides by the mean of the group, and actor.advantage.std_norm by a deviation; use one of them"
        yield Problem("actor.advantage.mean_norm", message, also=("actor.advantage.std_norm",))


def _broken_rules(root: Any, prefix: str, rules: tuple[KeyRule, ...]) -> Iterator[Problem]:
    """The rules that apply."""
    for rule in rules:
        value = _at(root, rule.key)
        if value is not None and rule.matches(value):
            yield Problem(f"{prefix}.{rule.key}".removeprefix("."), rule.message.format(value))


def changed_keys(config: Any, path: str) -> Iterator[str]:
    """The keys at or below a path whose value differs from the (resolved) default."""
    *above, name = path.split(".")
    owner = _at(config, ".".join(above)) if above else config
    if owner is None or not hasattr(owner, name):
        return
    value = getattr(owner, name)
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from changed_keys(config, f"{path}.{field.name}")
        return
    field = next(field for field in dataclasses.fields(owner) if field.name == name)
    default = field.default
    if default is dataclasses.MISSING:
        assert field.default_factory is not dataclasses.MISSING
        default = field.default_factory()
    if isinstance(default, str) and default.startswith("${"):
        default = _at(config, default[2:-1])
    if value != default:
        yield path


def _at(root: Any, path: str) -> Any:
    """The value at a dotted path; None if a section above it is null or absent."""
    for name in path.split("."):
        root = getattr(root, name, None)
    return root
