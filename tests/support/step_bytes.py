"""The bytes of tensors in a real step of a small model with the proportions of a large one, measured and planned."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from transformers import AutoModelForCausalLM, Qwen3Config

from areal_like.algorithms import logprobs
from areal_like.config.allocation import ParallelStrategy
from areal_like.config.sections.optimizer import OptimizerConfig
from areal_like.config.sections.train_engine import FSDPEngineConfig, MicroBatchSpec, TrainEngineConfig
from areal_like.models.model_shape import shape_of
from areal_like.training.engine import TrainEngine
from areal_like.training.row_shards import local_tensor
from areal_like.training.sequences import Sequences
from areal_like.training.world import World
from launcher.plan import step_memory
from launcher.plan.memory import model_memory
from tests.support.live_bytes import LiveBytes
from tests.support.training_runs import section

SHAPE: dict[str, Any] = {
    **{"vocab_size": 2048, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 512},
}
TOKENS, LENGTH = 512, 64
LOGITS = 1 << 16
"""At a time: as many of the small vocabulary as there are of a large one."""


class StepCase(NamedTuple):
    dtype: str
    recomputes: bool
    reduction: str

    @property
    def config(self) -> TrainEngineConfig:
        made: TrainEngineConfig = section(
            TrainEngineConfig,
            path="",
            dtype=self.dtype,
            gradient_checkpointing=self.recomputes,
            optimizer=section(OptimizerConfig),
            fsdp=section(FSDPEngineConfig, reduce_gradients=self.reduction),
            mb_spec=section(MicroBatchSpec, n_mbs=2),
        )
        return made


CASES = (
    StepCase("float32", False, "per_micro_batch"),
    StepCase("bfloat16", True, "per_micro_batch"),
    StepCase("bfloat16", True, "per_step"),
)


def measured(folder: Path, world: World) -> tuple[list[dict[str, float]], TrainEngine]:
    """Of each case: weights, optimizer, gradients between micro-batches, and the most that was alive."""
    root = folder.parent / f"wide-{world.size}"
    if world.is_first:
        AutoModelForCausalLM.from_config(Qwen3Config(**SHAPE, tie_word_embeddings=True)).save_pretrained(root)
    world.barrier()
    at_once, logprobs.LOGITS_AT_ONCE = logprobs.LOGITS_AT_ONCE, {"cpu": LOGITS, "cuda": LOGITS}
    try:
        results = [_of_case(case, root, world) for case in CASES]
    finally:
        logprobs.LOGITS_AT_ONCE = at_once
    return [result for result, _ in results], results[-1][1]


def _of_case(case: StepCase, folder: Path, world: World) -> tuple[dict[str, float], TrainEngine]:
    engine = TrainEngine(case.config, "model", folder, world, seed=1)
    num = 2 * TOKENS // LENGTH
    ids = np.random.default_rng(world.rank).integers(0, SHAPE["vocab_size"], num * (LENGTH + 1)).astype(np.int32)
    sequences = Sequences(ids, np.ones(len(ids)), np.full(num, LENGTH + 1))
    micros = engine.micro_batches(sequences, list(range(num)))
    assert [len(micro.input_ids_T) for micro in micros] == [TOKENS] * 2
    gradients: list[int] = []

    def loss(micro: Any, values: Tensor, _: Tensor | None) -> Tensor:
        if len(gradients) == 0:
            gradients.append(0)
        elif len(gradients) == 1:
            gradients.append(sum(_bytes_of(engine)))
        return -values.mean()

    engine.step(0, engine.accumulate(micros, loss))
    live = LiveBytes()
    weights = live.count(engine.parameters)
    state = [value for kinds in engine.optimizer.state.values() for value in kinds.values() if value.dim()]
    optimizer = live.count(state)
    with live:
        engine.accumulate(micros, loss)
    return {"weights": weights, "optimizer": optimizer, "gradients": gradients[1], "peak": live.peak}, engine


def _bytes_of(engine: TrainEngine) -> list[int]:
    """Of gradients: the rank's shards, and those that wait whole until the last micro-batch."""
    sharded = [local_tensor(each.grad).nbytes for each in engine.parameters if each.grad is not None]
    whole = []
    for module in engine.module.modules():
        groups = module._get_fsdp_state()._fsdp_param_groups if isinstance(module, FSDPModule) else []
        for parameter in (each for group in groups for each in group.fsdp_params):
            kept = parameter.unsharded_accumulated_grad
            whole.append(0 if kept is None else kept.nbytes)
    return sharded + whole


def planned(case: StepCase, num_ranks: int) -> dict[str, float]:
    at_once, step_memory.LOGITS_AT_ONCE = step_memory.LOGITS_AT_ONCE, {False: LOGITS, True: LOGITS}
    try:
        shape = shape_of({**SHAPE, "model_type": "qwen3", "tie_word_embeddings": True})
        assert shape is not None
        parallel = ParallelStrategy(backend="fsdp", data=num_ranks)
        memory = model_memory("model", case.config, shape, parallel, on_gpu=False)
    finally:
        step_memory.LOGITS_AT_ONCE = at_once
    peak = memory.total + TOKENS * memory.activations_per_token
    return {"weights": memory.weights, "optimizer": memory.optimizer, "gradients": memory.gradients, "peak": peak}
