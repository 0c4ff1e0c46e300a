"""Sharding, activation checkpointing, offloading and compilation: none changes the result."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

from areal_like.config.problems import ConfigError
from areal_like.config.sections.train_engine import (
    ActivationCheckpointingConfig,
    ActivationOffloadingConfig,
    CompileConfig,
    FSDPEngineConfig,
    FSDPWrapPolicy,
    MicroBatchSpec,
    ModelDebugConfig,
)
from areal_like.models.model_shape import shape_of
from areal_like.process import pulse
from areal_like.training import sharding, torch_compile
from areal_like.training.engine import TrainEngine
from areal_like.training.full_tensor import full_tensor
from areal_like.training.offload import HostActivations, HostCopy
from areal_like.training.row_shards import RowRange, local_tensor, split_rows
from areal_like.training.sequences import MicroBatch, Sequences
from areal_like.training.torch_compile import OPAQUE_ATTENTION
from areal_like.training.world import World
from launcher.plan.page_locked import activation_bytes
from tests.support.training_runs import make_engine, model_folder, section, weights_of, world
from tests.training.test_engine import mean_loss, tokens

A_LAYER = "Qwen3DecoderLayer"


def fsdp(**settings: Any) -> FSDPEngineConfig:
    actual: FSDPEngineConfig = section(FSDPEngineConfig, **settings)
    return actual


def learnt(engine: TrainEngine, steps: int = 2) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and gradient norms, and the weights at the end."""
    updates = [engine.step(step, engine.accumulate([tokens(step)], mean_loss)) for step in range(steps)]
    return [value for update in updates for value in (update.loss, update.grad_norm)], weights_of(engine)


def equal(one: TrainEngine, other: TrainEngine) -> bool:
    (metrics, weights), (other_metrics, other_weights) = learnt(one), learnt(other)
    return metrics == other_metrics and all(
        torch.equal(weights[name], tensor) for name, tensor in other_weights.items()
    )


@pytest.mark.parametrize("replicas", [2, 3])
def test_impossible_numbers_of_replicas_are_refused(tmp_path, replicas):
    with pytest.raises(ConfigError, match=rf"actor\.fsdp\.dp_replicate.*{replicas} replicas.*of 1 ranks"):
        make_engine(model_folder(tmp_path, "qwen3"), fsdp=fsdp(dp_replicate=replicas))


def test_rows_are_split_as_fsdp_splits_them():
    for num_rows in (1, 5, 8, 40):
        for num_ranks in (1, 2, 3, 4, 7):
            chunks = [len(chunk) for chunk in torch.arange(num_rows).chunk(num_ranks)]
            parts = split_rows(num_rows, num_ranks)
            assert [part.num for part in parts] == chunks + [0] * (num_ranks - len(chunks))
            assert all(
                RowRange(sum(chunks[:rank]), 0).start == part.start for rank, part in enumerate(parts) if part.num
            )


def test_parameter_offload_is_passed_to_fsdp(tmp_path, monkeypatch):
    """On a CPU they are there anyway: checked are FSDP's policy, and that nothing is pinned without a GPU."""
    policies: list[OffloadPolicy] = []

    def noted(module: nn.Module, **how: Any) -> Any:
        policies.append(how["offload_policy"])
        return fully_shard(module, **how)

    monkeypatch.setattr(sharding, "fully_shard", noted)
    folder = model_folder(tmp_path, "qwen3")
    kept, moved = (make_engine(folder, fsdp=fsdp(offload_params=value)) for value in (False, True))

    assert [type(policy) for policy in policies] == [OffloadPolicy] * 3 + [CPUOffloadPolicy] * 3
    assert not any(policy.pin_memory for policy in policies if isinstance(policy, CPUOffloadPolicy))
    assert equal(kept, moved)


WAYS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "critic": {"is_critic": True},
    "adapter": {"use_lora": True, "lora_rank": 4},
    "random": {"init_from_scratch": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_a_model_built_without_memory_and_filled_later_is_the_same_to_the_last_bit(tmp_path, name, way):
    """Also where head and embedding are one tensor."""
    settings = WAYS[way]
    folder = model_folder(tmp_path, name)
    usual, filled = (make_engine(folder, fsdp=fsdp(load_using_meta=value), **settings) for value in (False, True))

    parameters = [dict(engine.model.named_parameters()) for engine in (usual, filled)]
    assert parameters[0].keys() == parameters[1].keys()
    assert len(usual.parameters) == len(filled.parameters)
    for weight, tensor in parameters[0].items():
        assert torch.equal(full_tensor(tensor.detach()), full_tensor(parameters[1][weight].detach())), weight
    buffers = [dict(engine.model.named_buffers()) for engine in (usual, filled)]
    assert buffers[0] and all(torch.equal(buffer, buffers[1][name]) for name, buffer in buffers[0].items())
    if way != "critic":
        assert equal(usual, filled)


def test_only_the_first_rank_reads_weights(tmp_path):
    """The others are given a folder without any. (Tests of several ranks check the transfer.)"""
    folder = model_folder(tmp_path, "qwen3")
    bare = Path(shutil.copytree(folder, tmp_path / "bare"))
    (bare / "model.safetensors").unlink()
    second = World(1, 1, world().device)
    config = make_engine(folder, fsdp=fsdp(load_using_meta=True)).config

    engine = TrainEngine(config, "actor", bare, second, seed=1)
    assert all(parameter.device.type == "cpu" for parameter in engine.parameters)


def test_a_rank_that_is_given_weights_has_as_many_collectives_behind_it_as_the_one_that_reads_them(
    tmp_path, monkeypatch
):
    """Or the watchdog would take the first rank for the one that hangs."""
    config = make_engine(folder := model_folder(tmp_path, "qwen3"), fsdp=fsdp(load_using_meta=True)).config
    entered: list[str] = []

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        entered.append(name)
        yield

    monkeypatch.setattr(pulse, "phase", phase)
    counts = []
    for rank in range(2):
        entered.clear()
        TrainEngine(config, "actor", folder, World(rank, 1, world().device), seed=1)
        counts.append(entered.count(pulse.COLLECTIVE))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize(("freq", "again"), [(1, 3), (2, 2), (3, 1)])
def test_every_n_th_layer_computes_its_activations_again(tmp_path, freq, again):
    folder = model_folder(tmp_path, "llama")
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    settings: dict[str, Any] = {"init_from_scratch": True, "gradient_checkpointing": True}
    checkpointing = section(ActivationCheckpointingConfig, freq=freq)
    engine = make_engine(folder, activation_checkpointing=checkpointing, **settings)
    calls: list[str] = []
    for name, module in engine.model.named_modules():
        if type(module).__name__.endswith("LlamaMLP"):
            module.register_forward_pre_hook(lambda *_, name=name: calls.append(name))
    engine.accumulate([tokens()], mean_loss)

    assert len(calls) == 3 + again


def wrapping(*names: str) -> FSDPEngineConfig:
    return fsdp(wrap_policy=section(FSDPWrapPolicy, transformer_layer_cls_to_wrap=list(names)))


def test_modules_inside_others_are_sharded_too_and_learn_the_same(tmp_path):
    folder = model_folder(tmp_path, "qwen3")
    assert equal(make_engine(folder), make_engine(folder, fsdp=wrapping(A_LAYER, "Qwen3MLP")))


@pytest.mark.parametrize("names", [(A_LAYER, "Qwen3MLP"), ("Qwen3MLP",)])
def test_checkpointed_layers_do_not_depend_on_sharding(tmp_path, names):
    folder, every_other = model_folder(tmp_path, "qwen3"), section(ActivationCheckpointingConfig, freq=2)
    settings: dict[str, Any] = {"gradient_checkpointing": True, "activation_checkpointing": every_other}
    engine = make_engine(folder, fsdp=wrapping(*names), **settings)

    layers: Any = engine.model.base_model.layers
    assert [layer.gradient_checkpointing for layer in layers] == [True, False]


def test_the_first_layers_of_a_model_are_a_model(tmp_path):
    folder = model_folder(tmp_path, "gemma3")
    engine = make_engine(folder, debug=section(ModelDebugConfig, num_layers=1))
    whole = weights_of(make_engine(folder))
    kept = weights_of(engine)

    assert engine.model.config.num_hidden_layers == 1 and engine.model.config.layer_types == ["sliding_attention"]
    assert {name for name in whole if ".layers.1." not in name} == kept.keys()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in kept.items())
    assert engine.logprobs([tokens()], 1.0)[0].isfinite().all()
    assert make_engine(folder, debug=section(ModelDebugConfig, num_layers=9)).model.config.num_hidden_layers == 2


def test_experts_are_multiplied_at_once_or_one_by_one(tmp_path):
    folder = model_folder(tmp_path, "qwen3_moe")
    at_once, one_by_one = (make_engine(folder, moe_use_grouped_mm=value) for value in (True, False))

    assert at_once.model.config._experts_implementation == "grouped_mm"
    assert one_by_one.model.config._experts_implementation == "eager"
    (metrics, weights), (other_metrics, other_weights) = learnt(at_once), learnt(one_by_one)
    assert metrics == pytest.approx(other_metrics, rel=1e-5)
    for name, tensor in weights.items():
        torch.testing.assert_close(other_weights[name], tensor, atol=1e-4, rtol=1e-4, msg=name)


class Watched(HostActivations):
    """Treats host memory as that of a GPU."""

    def __init__(self, pin_memory: bool, max_in_flight: int) -> None:
        super().__init__(pin_memory, max_in_flight)
        self.moved: list[Tensor] = []
        self.most_at_once = 0

    def is_on_device(self, tensor: Tensor) -> bool:
        return True

    def pack(self, tensor: Tensor) -> Any:
        saved = super().pack(tensor)
        if isinstance(saved, HostCopy):
            self.moved.append(saved.values)
        self.most_at_once = max(self.most_at_once, len(self.in_flight))
        return saved


@pytest.mark.parametrize("again", [False, True])
def test_offloaded_activations_are_restored_unchanged(tmp_path, monkeypatch, again):
    monkeypatch.setattr("areal_like.training.offload.MIN_ELEMENTS", 64)
    monkeypatch.setattr(sharding, "HostActivations", Watched)
    folder = model_folder(tmp_path, "qwen3")
    offloading = section(ActivationOffloadingConfig, max_inflight_activations=2)
    usual = make_engine(folder, gradient_checkpointing=again)
    moving = make_engine(folder, gradient_checkpointing=again, activation_offloading=offloading)
    assert equal(usual, moving)

    watched = moving.forward_context
    assert isinstance(watched, Watched) and watched.most_at_once == 2
    assert len(watched.moved) > 2 and all(values.device.type == "cpu" for values in watched.moved)
    shapes = {tuple(parameter.shape) for parameter in moving.parameters}
    turned = {shape[::-1] for shape in shapes}
    assert not [values for values in watched.moved if tuple(values.shape) in shapes | turned], "weights stay"
    assert not watched.in_flight


def test_an_activation_that_is_saved_again_is_copied_once_as_planned(tmp_path, monkeypatch):
    """The input of the projections of queries, keys and values, for example. The plan counts layers, and not the last
    norm and the head."""
    monkeypatch.setattr(sharding, "HostActivations", Watched)
    folder, lengths = model_folder(tmp_path, "llama"), np.full(16, 32)
    settings = {"max_tokens_per_mb": int(lengths.sum())}
    offloading = section(ActivationOffloadingConfig, pin_memory=False)
    engine = make_engine(folder, activation_offloading=offloading, mb_spec=section(MicroBatchSpec, **settings))
    ids = np.arange(lengths.sum(), dtype=np.int32) % 40
    engine.accumulate([Sequences(ids, np.ones(len(ids)), lengths).micro_batch(range(16), world().device)], mean_loss)

    watched, shape = engine.forward_context, shape_of(json.loads((folder / "config.json").read_text()))
    assert isinstance(watched, Watched) and shape is not None
    moved = sum({id(values): values.nbytes for values in watched.moved}.values())
    planned = activation_bytes(engine.config, shape, 4)
    assert planned < moved < 1.25 * planned


def test_changed_numbers_are_copied_again() -> None:
    moving, tensor = Watched(pin_memory=False, max_in_flight=5), torch.ones(64, 64)
    first = moving.pack(tensor)
    assert moving.pack(tensor) is first and moving.pack(tensor.view(64, 64)) is first
    others = [moving.pack(tensor.T), moving.pack(tensor.view(32, 128)), moving.pack(tensor.add_(1))]
    assert len({id(copy) for copy in [first, *others]}) == 4
    assert (first.values == 1).all() and (others[-1].values == 2).all()


def test_activations_on_the_host_are_not_copied(tmp_path):
    offloading = section(ActivationOffloadingConfig)
    engine = make_engine(model_folder(tmp_path, "qwen3"), activation_offloading=offloading)
    assert isinstance(engine.forward_context, HostActivations)
    weight = nn.Parameter(torch.ones(64, 64))
    with engine.forward_context:
        out = (weight * torch.ones(64, 64)).exp()
    assert not engine.forward_context.in_flight
    out.sum().backward()
    assert weight.grad is not None and torch.allclose(weight.grad, out)


looks_at_gradients = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
"""torch's compiler does so, for all inputs."""


@pytest.fixture
def as_captured(monkeypatch) -> None:
    """Layers are captured and run as graphs, but not turned into machine code, which takes half a minute."""
    usual = nn.Module.compile
    monkeypatch.setattr(torch_compile, "has_compiler", lambda: True)
    monkeypatch.setattr(nn.Module, "compile", lambda *given, **how: usual(*given, **how, backend="eager"))
    torch._dynamo.reset()


def compared(folder: Path, micros: list[MicroBatch], **settings: Any) -> TrainEngine:
    """A compiled engine whose losses and gradients are those of one that is not."""
    compiling = section(CompileConfig, fullgraph=True)
    usual, faster = (make_engine(folder, compile=value, **settings) for value in (None, compiling))
    for micro in micros:
        assert faster.accumulate([micro], mean_loss).item() == pytest.approx(
            usual.accumulate([micro], mean_loss).item(), rel=1e-6
        )
    for one, other in zip(usual.parameters, faster.parameters, strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(local_tensor(other.grad), local_tensor(one.grad), atol=1e-5, rtol=1e-4)
    return faster


@looks_at_gradients
def test_compiled_layers_are_one_graph_for_micro_batches_of_any_shape(tmp_path, as_captured):
    """With sliding windows and activation checkpointing."""
    from torch._dynamo.utils import counters

    counters.clear()
    others = [cut(lengths) for lengths in ([3, 9, 2], [11], [4, 4, 4, 7])]
    engine = compared(model_folder(tmp_path, "mistral"), [tokens(), *others], gradient_checkpointing=True)

    assert engine.model.config._attn_implementation == OPAQUE_ATTENTION
    # For training, for what is computed again, and for the evaluation of the rehearsal.
    assert counters["stats"]["unique_graphs"] == 3
    assert not counters["graph_break"]


def cut(lengths: list[int]) -> MicroBatch:
    draw = np.random.default_rng(len(lengths))
    ids = draw.integers(0, 40, sum(lengths)).astype(np.int32)
    return Sequences(ids, ids >= 0, np.array(lengths)).micro_batch(range(len(lengths)), world().device)


@pytest.mark.filterwarnings("ignore")  # of the compiler's own parts
@pytest.mark.slow
@pytest.mark.skipif(not torch_compile.has_compiler(), reason="there is no C++ compiler here")
def test_compiled_layers_compute_the_same(tmp_path):
    torch._dynamo.reset()
    compared(model_folder(tmp_path, "qwen3"), [tokens(), cut([3, 9, 2])], gradient_checkpointing=True)


@pytest.mark.parametrize(
    ("name", "why"),
    [("gemma2", "capped scores"), ("dropping", "disable_dropout=true, or set"), ("bare", r"needs a C\+\+ compiler")],
)
def test_models_that_cannot_be_compiled_are_refused_before_training(tmp_path, monkeypatch, name, why):
    folder = model_folder(tmp_path, "gemma2" if name == "gemma2" else "qwen3")
    monkeypatch.setattr(torch_compile, "has_compiler", lambda: name != "bare")
    if name == "dropping":
        config = folder / "config.json"
        config.write_text(config.read_text().replace('"attention_dropout": 0.0', '"attention_dropout": 0.3'))
    with pytest.raises(ConfigError, match=rf"actor\.compile.*{why}.*actor\.compile=null"):
        make_engine(folder, compile=section(CompileConfig))
