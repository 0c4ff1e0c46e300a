"""The work of every rank in a test that compares worlds of several sizes. The first rank writes the results of each
step, and the weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft  # noqa: F401 (it takes seconds, and is imported once for all ranks)
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from areal_like.config.load import load
from areal_like.config.problems import ConfigError
from areal_like.config.sections.actor import NormConfig, PPOActorConfig, PPOCriticConfig
from areal_like.config.sections.optimizer import OptimizerConfig
from areal_like.config.sections.train_engine import (
    CompileConfig,
    FSDPEngineConfig,
    MicroBatchSpec,
    TrainEngineConfig,
)
from areal_like.observe.timing import Stopwatch
from areal_like.training.actor import Actor
from areal_like.training.batch import TrainingBatch, read_batch
from areal_like.training.critic import Critic
from areal_like.training.engine import TrainEngine
from areal_like.training.full_tensor import full_tensor
from areal_like.training.reference import BaseModelReference, NoReference
from areal_like.training.sequences import MicroBatch, Sequences
from areal_like.training.supervised import SupervisedLearner
from areal_like.training.world import World
from tests.support import step_bytes
from tests.support.training_controller import Groups, batch_frame, trajectory
from tests.support.training_runs import section, train_step

ACTOR_STEPS = 3
STEPS = 5
ADAM = {"lr": 0.002}
SGD = {"type": "sgd", "lr": 0.05, "momentum": 0.9}
LORA = {"use_lora": True, "lora_rank": 4, "lora_alpha": 8}
RankResults = tuple[list[dict[str, float]], TrainEngine]


def groups_of(step: int) -> Groups:
    """Five prompts: an odd number, so that two ranks get unequal shares; one of them teaches nothing. In the last step
    there is one, and so nothing for the second of two ranks."""
    draw = np.random.default_rng(step)
    return [
        [
            trajectory(
                draw.integers(0, 40, 3 + int(draw.integers(1, 6))).tolist(), 3, 1.0 if group == 4 else draw.random()
            )
            for _ in range(3)
        ]
        for group in range(1 if step == ACTOR_STEPS - 1 else 5)
    ]


def batch_of(step: int, world: World) -> TrainingBatch:
    header, blobs = batch_frame(step, groups_of(step), world.rank, world.size)
    return read_batch(header, [memoryview(blob) for blob in blobs])


def actor_of(folder: Path, world: World) -> Actor:
    """Advantages are normalized over the whole batch."""
    config = section(
        PPOActorConfig,
        path=str(folder),
        dtype="float32",
        group_size=3,
        ppo_n_minibatches=1,
        use_decoupled_loss=True,
        temperature=1.0,
        max_new_tokens=6,
        kl_ctl=0.0,
        entropy_coef=0.01,
        gradient_checkpointing=False,
        optimizer=section(OptimizerConfig, lr=0.01),
        reward_norm=section(NormConfig, mean_level="group", std_level="group", group_size=3),
        adv_norm=section(NormConfig, mean_level="batch", std_level="batch", group_size=3),
    )
    return Actor(TrainEngine(config, "actor", folder, world, seed=1), NoReference(), config, seed=1)


def actor_steps(folder: Path, world: World) -> RankResults:
    actor = actor_of(folder, world)
    return [train_step(actor, batch_of(step, world)) for step in range(ACTOR_STEPS)], actor.engine


def critic_steps(folder: Path, world: World) -> RankResults:
    """A critic next to a policy: it values each batch, and learns from it."""
    plain = {"path": str(folder), "dtype": "float32", "is_critic": True, "ppo_n_minibatches": 1}
    config = section(PPOCriticConfig, **plain, gradient_checkpointing=False, optimizer=section(OptimizerConfig, **SGD))
    critic = Critic(TrainEngine(config, "critic", folder, world, seed=1), config, seed=1)
    actor, steps = actor_of(folder, world), []
    for step in range(ACTOR_STEPS):
        batch = batch_of(step, world)
        critic.compute_values(batch, Stopwatch())
        steps.append(train_step(actor, batch) | critic.update(batch, Stopwatch()))
    return steps, critic.engine


def engine_of(folder: Path, world: World, optimizer: dict[str, Any], **settings: Any) -> TrainEngine:
    plain = {"path": str(folder), "dtype": "float32", "optimizer": section(OptimizerConfig, **optimizer)}
    return TrainEngine(section(TrainEngineConfig, **plain, **settings), "model", folder, world, seed=1)


def learn(folder: Path, world: World, optimizer: dict[str, Any], **settings: Any) -> RankResults:
    """Five answers of unequal length, over and over."""
    draw = np.random.default_rng(5)
    lengths = np.array([3, 9, 4, 7, 2])
    ids = draw.integers(0, 40, lengths.sum()).astype(np.int32)
    learner = SupervisedLearner(engine_of(folder, world, optimizer, **settings), seed=1)
    return [learner.step(Sequences(ids, ids >= 0, lengths), step) for step in range(STEPS)], learner.engine


def sent(folder: Path, world: World) -> RankResults:
    """Models that the first rank alone has loaded are those that each rank loaded by itself, to the last bit."""
    fsdp = section(FSDPEngineConfig, load_using_meta=True, dp_replicate=2 if world.size == 4 else 1)
    kinds: list[dict[str, Any]] = [{}, {"init_from_scratch": True}, LORA, {"is_critic": True}]
    for kind in kinds if world.size == 2 else kinds[:1]:
        own = weights(engine_of(folder, world, SGD, **kind))
        others = weights(engine_of(folder, world, SGD, fsdp=fsdp, **kind))
        assert own.keys() == others.keys()
        assert [name for name, weight in own.items() if not torch.equal(weight, others[name])] == [], kind
    return learn(folder, world, SGD, fsdp=fsdp)


def weights(engine: TrainEngine) -> dict[str, Tensor]:
    return {name: full_tensor(parameter.detach()) for name, parameter in engine.model.named_parameters()}


def offloaded(folder: Path, world: World) -> RankResults:
    return learn(folder, world, {**ADAM, "offload": True}, fsdp=section(FSDPEngineConfig, offload_params=True))


def replicated(folder: Path, world: World) -> RankResults:
    """Two replicas, each sharded over two ranks, as the configuration asks for them."""
    words = ["rollout.backend=embedded", "actor.fsdp.dp_replicate=2", "actor.fsdp.reshard_after_forward=false"]
    steps, engine = learn(folder, world, ADAM, fsdp=load("grpo.yaml", words).config.actor.fsdp)
    whole, own = (sum(count(each) for each in engine.parameters) for count in (Tensor.numel, local_numel))
    assert 0.4 * whole < own < 0.6 * whole, f"a rank has {own} of {whole} values"
    return steps, engine


def reduced_each(folder: Path, world: World) -> RankResults:
    """Gradients are summed over the ranks with each of three micro-batches. With replicas, within these alone."""
    fsdp = section(FSDPEngineConfig, reduce_gradients="per_micro_batch", dp_replicate=world.size // 2 or 1)
    steps, engine = learn(folder, world, ADAM, fsdp=fsdp, mb_spec=section(MicroBatchSpec, n_mbs=3))
    has_gradient: list[bool] = []

    def noted(micro: MicroBatch, logprobs: Tensor, entropies: Tensor | None) -> Tensor:
        has_gradient.append(engine.parameters[0].grad is not None)
        return logprobs.sum()

    ids = np.arange(6, dtype=np.int32)
    engine.accumulate(engine.micro_batches(Sequences(ids, ids >= 0, np.array([2, 2, 2])), [0, 1, 2]), noted)
    assert has_gradient == [False, world.size < 4, world.size < 4]
    assert all(parameter.grad is not None for parameter in engine.parameters)
    return steps, engine


def adapter(folder: Path, world: World) -> RankResults:
    """Before each update the log-probabilities by the base model, which stay what those of the engine were at first.
    Plain SGD, so that rounding errors stay small."""
    lora = {"use_lora": True, "lora_rank": 4, "lora_modules_to_save": ["lm_head"]}
    engine = engine_of(
        folder.with_name("llama"), world, {"type": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}, **lora
    )
    reference = BaseModelReference(engine, engine.config, "ref")
    draw = np.random.default_rng(5)
    lengths = np.array([3, 9, 4, 7, 2])
    sequences = Sequences(draw.integers(0, 40, lengths.sum()).astype(np.int32), np.ones(lengths.sum()), lengths)
    rows = np.arange(5)[world.rank :: world.size]

    def logprobs(model: TrainEngine | BaseModelReference) -> float:
        values = model.logprobs(model.micro_batches(sequences, rows), 1.0)
        return world.sum([float(sum(each.double().sum() for each in values))])[0]

    steps = []
    for step in range(STEPS):
        before = {"of_reference": logprobs(reference), "of_model": logprobs(engine)}
        part = engine.accumulate(engine.micro_batches(sequences, rows), lambda _, result, entropy: -result.sum() / 20)
        made = engine.step(step, part)
        steps.append({**before, "loss": made.loss, "grad_norm": made.grad_norm})
    return steps, engine


def compiled(folder: Path, world: World) -> RankResults:
    """What one rank cannot compile no rank compiles; then all can."""
    usual, works = nn.Module.compile, [world.is_first]

    def backend(graph: torch.fx.GraphModule, _: list[Any]) -> Any:
        if not works[0]:
            raise RuntimeError("no compiler on the second rank")
        return graph.forward

    nn.Module.compile = lambda *given, **how: usual(*given, **how, backend=backend)  # type: ignore[method-assign]
    uncompiled = engine_of(folder, world, ADAM, compile=section(CompileConfig, required=False))
    assert uncompiled.compiled is not None and uncompiled.compiled.num == 0
    try:
        engine_of(folder, world, ADAM, compile=section(CompileConfig))
    except ConfigError as refusal:
        assert str(refusal).startswith("model.compile: ") and "no compiler on the second rank" in str(refusal)
    else:
        raise AssertionError("no error")
    works[0] = True
    steps, engine = learn(folder, world, ADAM, compile=section(CompileConfig, required=False))
    nn.Module.compile = usual  # type: ignore[method-assign]
    return steps, engine


def local_numel(parameter: Tensor) -> int:
    return parameter.to_local().numel() if isinstance(parameter, DTensor) else parameter.numel()


WAYS: dict[str, Callable[[Path, World], RankResults]] = {
    "actor": actor_steps,
    "critic": critic_steps,
    "adam": lambda folder, world: learn(folder, world, ADAM),
    "sgd": lambda folder, world: learn(folder, world, SGD),
    "lora-adam": lambda folder, world: learn(folder, world, ADAM, **LORA),
    "lora-sgd": lambda folder, world: learn(folder, world, SGD, **LORA),
    "adapter": adapter,
    "muon": lambda folder, world: learn(folder, world, {"type": "muon", "lr": 0.002}),
    "adam_bf16": lambda folder, world: learn(folder, world, {"type": "adam_bf16", "lr": 0.002}),
    "sent": sent,
    "offloaded": offloaded,
    "replicated": replicated,
    "reduced-each": reduced_each,
    "compiled": compiled,
    "bytes": step_bytes.measured,
}
"""All kinds of training that must give the same on any number of ranks."""


def run(world: World, folder: str, out: str, *ways: str) -> None:
    results: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for way in ways:
        results[way], engine = WAYS[way](Path(folder), world)
        exported = dict(engine.export_weights())
        if engine.adapter is not None:
            exported |= engine.export_weights(adapter_only=True)
        tensors |= {f"{way}/{name}": tensor.clone() for name, tensor in exported.items()}
        for name, parameter in engine.model.named_parameters():
            for kind, value in engine.optimizer.state.get(parameter, {}).items():
                tensors[f"{way}/{kind}/{name}"] = full_tensor(value).clone()
    if world.is_first:
        Path(out).write_text(json.dumps(results))
        save_file(tensors, Path(out).with_suffix(".safetensors"))
