"""Effects of the keys of optimizers, sharding and memory, for each model of a trainer."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from areal_like.config.checks.training import served_first_layers
from areal_like.config.problems import ConfigError
from areal_like.config.sections.optimizer import OptimizerConfig
from areal_like.process.errors import Failure
from areal_like.process.identity import TOKEN
from areal_like.training import engine as engine_module
from areal_like.training import main, sharding, torch_compile
from areal_like.training.engine import TrainEngine
from areal_like.training.host_copies import HostCopies
from areal_like.training.sequences import MicroBatch
from areal_like.training.sharding import load_from_first_rank
from tests.support.planning import loaded
from tests.support.training_runs import ME, make_run, model_folder, section, world
from tests.training.test_engine import tokens
from tests.training.test_engine_keys import KINDS, SECTIONS, TRAINED, engine_of

SET: dict[str, Any] = {
    "type": "sgd",
    "lr": 0.125,
    "weight_decay": 0.5,
    "beta1": 0.5,
    "beta2": 0.75,
    "eps": 4.0,
    "min_lr_ratio": 0.25,
    "lr_scheduler_type": "cosine",
    "warmup_steps_proportion": 0.5,
    "offload": True,
    "initial_loss_scale": 512.0,
    "min_loss_scale": 256.0,
    "loss_scale_window": 2.0,
    "hysteresis": 1,
    "gradient_clipping": 0.0625,
    "nesterov": False,
    "momentum": 0.25,
    "warmup_steps": 4,
    "decay_steps": 5,
    "decay_steps_proportion": 0.5,
    "min_lr": 0.0025,
    "max_skipped_in_a_row": 2,
}
"""Another value than the default for every key."""

BASE: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.0, "gradient_clipping": 0.0, "warmup_steps": 0}


@cache
def folder(kind: str = "qwen3") -> Path:
    return model_folder(Path(mkdtemp()), kind)


@cache
def explicit_section(where: str) -> Any:
    """A section whose optimizer keys are all set explicitly."""
    words = [f"{where}.optimizer.{name}={str(value).lower()}" for name, value in SET.items()]
    kind = KINDS.get(where, "grpo")
    own = [] if kind == "sft" else ["rollout.backend=embedded"]
    plain = [f"{where}.path={folder()}", f"{where}.gradient_checkpointing=false", f"{where}.dtype=float32"]
    return getattr(make_run(Path(mkdtemp()) / "run", kind, *own, *words, *plain).config, where)


def made(where: str, *names: str, half: bool = False, **others: Any) -> TrainEngine:
    """With these keys as set, and the others at their defaults."""
    explicit = explicit_section(where)
    optimizer = section(OptimizerConfig, **BASE)
    optimizer = replace(optimizer, **others, **{name: getattr(explicit.optimizer, name) for name in names})
    config = replace(explicit, optimizer=optimizer, dtype="float16" if half else "float32")
    return TrainEngine(config, where, folder(), world(), seed=1)


def loss(micro: MicroBatch, actual: Tensor, entropy: Tensor | None) -> Tensor:
    return -actual.mean() + actual.square().mean()


def nothing(micro: MicroBatch, actual: Tensor, entropy: Tensor | None) -> Tensor:
    return actual.sum() * 0.0


def stepped(engine: TrainEngine, of: Any = loss) -> TrainEngine:
    engine.step(0, engine.accumulate([tokens()], of))
    return engine


def state(engine: TrainEngine, kind: str) -> Tensor:
    return torch.cat([local(engine.optimizer.state[parameter][kind]).flatten() for parameter in engine.parameters])


def weights(engine: TrainEngine) -> Tensor:
    return torch.cat([local(parameter.detach()).flatten() for parameter in engine.parameters])


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def moved(engine: TrainEngine) -> Tensor:
    before = weights(engine)
    return weights(stepped(engine)) - before


def rates(engine: TrainEngine) -> list[float]:
    engine.set_schedule(10)
    return [round(engine.schedule(step) / 0.01, 4) for step in range(11)]


def of_type(where: str) -> None:
    assert type(made(where).optimizer).__name__ == "AdamW"
    assert type(made(where, "type").optimizer).__name__ == "DecoupledSGD"


def of_lr(where: str) -> None:
    usual, larger = moved(made(where, eps=1e-30)), moved(made(where, "lr", eps=1e-30))
    torch.testing.assert_close(larger, usual * 12.5, atol=1e-5, rtol=1e-3)


def of_weight_decay(where: str) -> None:
    engine = made(where, "weight_decay")
    before = weights(engine)
    torch.testing.assert_close(weights(stepped(engine, nothing)), before * (1 - 0.01 * 0.5))


def of_beta1(where: str) -> None:
    usual, other = stepped(made(where)), stepped(made(where, "beta1"))
    torch.testing.assert_close(state(other, "exp_avg") / 0.5, state(usual, "exp_avg") / 0.1)


def of_beta2(where: str) -> None:
    usual, other = stepped(made(where)), stepped(made(where, "beta2"))
    torch.testing.assert_close(state(other, "exp_avg_sq") / 0.25, state(usual, "exp_avg_sq") / 0.05)


def of_eps(where: str) -> None:
    engine = made(where, "eps")
    step = moved(engine)
    gradient = state(engine, "exp_avg") / 0.1
    torch.testing.assert_close(step, -0.01 * gradient / (gradient.abs() + 4), atol=1e-6, rtol=1e-3)


def of_gradient_clipping(where: str) -> None:
    assert float(state(stepped(made(where)), "exp_avg").norm()) > 0.1
    held = stepped(made(where, "gradient_clipping"))
    assert float(state(held, "exp_avg").norm()) == pytest.approx(0.1 * 0.0625, rel=1e-4)


def of_momentum(where: str) -> None:
    engine = made(where, "momentum", type="sgd", nesterov=False)
    first, before = moved(engine), weights(engine)
    torch.testing.assert_close(weights(stepped(engine, nothing)) - before, first * 0.25, atol=1e-6, rtol=1e-3)


def of_nesterov(where: str) -> None:
    ahead, plain = (moved(made(where, *names, type="sgd", momentum=0.5)) for names in ((), ("nesterov",)))
    torch.testing.assert_close(ahead, plain * 1.5, atol=1e-6, rtol=1e-3)


def of_min_lr_ratio(where: str) -> None:
    assert rates(made(where, "min_lr_ratio", lr_scheduler_type="linear"))[-1] == 0.25


def of_min_lr(where: str) -> None:
    assert rates(made(where, "min_lr", lr_scheduler_type="linear"))[-1] == 0.25


def of_lr_scheduler_type(where: str) -> None:
    assert rates(made(where))[5:] == [1.0] * 6
    assert rates(made(where, "lr_scheduler_type"))[5:] == [0.5, 0.3455, 0.2061, 0.0955, 0.0245, 0.0]


def of_warmup_steps_proportion(where: str) -> None:
    assert rates(made(where, "warmup_steps_proportion", warmup_steps=None))[:6] == [0, 0.2, 0.4, 0.6, 0.8, 1.0]


def of_warmup_steps(where: str) -> None:
    assert rates(made(where, "warmup_steps"))[:5] == [0, 0.25, 0.5, 0.75, 1.0]


def of_decay_steps(where: str) -> None:
    falling = rates(made(where, "decay_steps", lr_scheduler_type="warmup_stable_decay"))
    assert falling[4:] == [1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0]


def of_decay_steps_proportion(where: str) -> None:
    falling = rates(made(where, "decay_steps_proportion", lr_scheduler_type="warmup_stable_decay"))
    assert falling[4:] == [1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0]


def of_offload(where: str) -> None:
    """On a CPU the state is in host memory anyway: only the moves are checked."""
    calls: list[str] = []

    def noted(optimizer: torch.optim.Optimizer, memory: HostCopies) -> None:
        calls.append("in")
        optimizer.step()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "step_from_host", noted)
        patch.setattr(engine_module, "to_host", lambda optimizer, memory: calls.append("out"))
        usual, offloaded = moved(made(where)), moved(made(where, "offload"))
    assert torch.equal(usual, offloaded) and calls == ["out", "in"]


def of_initial_loss_scale(where: str) -> None:
    assert made(where, half=True).scale.value == 2.0**32
    engine = made(where, "initial_loss_scale", half=True)
    assert engine.step(0, engine.accumulate([tokens()], loss)).loss_scale == 512.0


def of_min_loss_scale(where: str) -> None:
    for names, least in (((), 128.0), (("min_loss_scale",), 256.0)):
        scale = made(where, "initial_loss_scale", "hysteresis", *names, half=True).scale
        scale.overflow()
        scale.overflow()
        assert scale.value == least


def of_loss_scale_window(where: str) -> None:
    engine = made(where, "initial_loss_scale", "loss_scale_window", half=True)
    scales = [stepped(engine, nothing).scale.value for _ in range(4)]
    assert scales == [512.0, 1024.0, 1024.0, 2048.0]


def of_hysteresis(where: str) -> None:
    for names, after in (((), 2.0**32), (("hysteresis",), 2.0**31)):
        engine = made(where, *names, half=True)
        update = engine.step(0, engine.accumulate([tokens()], loss))
        assert update.is_overflow and engine.scale.value == after


def of_max_skipped_in_a_row(where: str) -> None:
    engine = made(where, "max_skipped_in_a_row")
    engine.step(0, torch.tensor(float("nan")))
    with pytest.raises(Failure, match=rf"{where}\.optimizer\.lr: 2 updates in a row"):
        engine.step(1, torch.tensor(float("nan")))


OPTIMIZER: dict[str, Callable[[str], None]] = {
    name.removeprefix("of_"): check for name, check in dict(globals()).items() if name.startswith("of_")
}


@pytest.mark.shows("{where}.optimizer.{name}")
@pytest.mark.parametrize("name", OPTIMIZER)
@pytest.mark.parametrize("where", TRAINED)
def test_a_key_of_the_optimizer(where, name):
    OPTIMIZER[name](where)


def test_every_key_of_the_optimizer_is_tested():
    from dataclasses import fields

    assert OPTIMIZER.keys() == SET.keys() == {field.name for field in fields(OptimizerConfig)}


@pytest.mark.shows("{where}.fsdp.offload_params")
@pytest.mark.parametrize("where", SECTIONS)
def test_offload_params_keeps_parameters_in_host_memory(tmp_path, monkeypatch, where):
    """On a CPU they are there anyway: what can be checked is FSDP's policy."""
    policies = []

    def noted(module: nn.Module, **how: Any) -> Any:
        policies.append(how["offload_policy"])
        return fully_shard(module, **how)

    monkeypatch.setattr(sharding, "fully_shard", noted)
    for value in ("false", "true"):
        engine_of(tmp_path, where, folder(), **{"fsdp.offload_params": value})
    assert [isinstance(policy, CPUOffloadPolicy) for policy in policies] == [False] * 3 + [True] * 3


@pytest.mark.shows("{where}.fsdp.wrap_policy.transformer_layer_cls_to_wrap")
@pytest.mark.parametrize("where", SECTIONS)
def test_transformer_layer_cls_to_wrap_selects_the_sharded_units(tmp_path, where):
    key = "fsdp.wrap_policy.transformer_layer_cls_to_wrap"
    engine = engine_of(tmp_path, where, folder(), **{key: "[Qwen3MLP]"})
    names = {type(module).__name__ for module in engine.module.modules()}
    assert "FSDPQwen3MLP" in names and "FSDPQwen3DecoderLayer" not in names


@pytest.mark.shows("actor.fsdp.reshard_after_forward")
def test_reshard_after_forward_frees_layers_at_once(tmp_path):
    gathered = {}
    for value in ("true", "false"):
        engine = engine_of(tmp_path, "actor", folder(), **{"fsdp.reshard_after_forward": value})
        engine.logprobs([tokens()], 1.0)
        gathered[value] = not isinstance(engine.model.model.layers[0].mlp.up_proj.weight, DTensor)
    assert gathered == {"true": False, "false": True}


def test_dp_replicate_must_divide_the_ranks(tmp_path):
    """A single rank cannot have two."""
    with pytest.raises(ConfigError, match=r"actor\.fsdp\.dp_replicate.*2 replicas cannot be made of 1 ranks"):
        engine_of(tmp_path, "actor", folder(), **{"fsdp.dp_replicate": 2})


@pytest.mark.shows("actor.fsdp.load_using_meta")
def test_load_using_meta_builds_the_model_without_memory(tmp_path, monkeypatch):
    devices: list[str] = []

    def noted(module: nn.Module, *given: Any) -> None:
        devices.extend({parameter.device.type for parameter in module.parameters()})
        load_from_first_rank(module, *given)

    monkeypatch.setattr(engine_module, "load_from_first_rank", noted)
    engine = engine_of(tmp_path, "actor", folder(), **{"fsdp.load_using_meta": "true"})
    assert devices == ["meta"] and {parameter.device.type for parameter in engine.parameters} == {"cpu"}


@pytest.mark.shows("actor.master_dtype")
def test_master_dtype_is_the_type_of_the_updated_weights(tmp_path):
    for name in ("float32", "bfloat16"):
        engine = engine_of(tmp_path, "actor", folder(), dtype="bfloat16", master_dtype=name)
        assert {parameter.dtype for parameter in engine.parameters} == {getattr(torch, name)}


@pytest.mark.shows("actor.moe_use_grouped_mm")
def test_moe_use_grouped_mm_multiplies_all_experts_at_once(tmp_path):
    for value, way in (("true", "grouped_mm"), ("false", "eager")):
        engine = engine_of(tmp_path, "actor", folder("qwen3_moe"), moe_use_grouped_mm=value)
        assert engine.model.config._experts_implementation == way


@pytest.mark.shows("actor.compile.fullgraph")
def test_fullgraph_is_passed_to_the_compiler(tmp_path, monkeypatch):
    values: list[bool] = []
    monkeypatch.setattr(torch_compile, "has_compiler", lambda: True)
    monkeypatch.setattr(nn.Module, "compile", lambda module, fullgraph, dynamic: values.append(fullgraph))
    for value in ("false", "true"):
        engine_of(tmp_path, "actor", folder(), **{"compile.fullgraph": value})
    assert values == [False] * 3 + [True] * 3, "one layer is rehearsed"


@pytest.mark.shows("actor.activation_checkpointing.freq")
def test_freq_is_the_interval_of_checkpointed_layers(tmp_path):
    keys = {"gradient_checkpointing": "true", "activation_checkpointing.freq": 2}
    engine = engine_of(tmp_path, "actor", folder(), **keys)
    assert [layer.gradient_checkpointing for layer in engine.model.model.layers] == [True, False]


@pytest.mark.shows("actor.activation_offloading.{name}")
@pytest.mark.parametrize(("name", "value"), [("pin_memory", False), ("max_inflight_activations", 2)])
def test_a_key_of_activation_offloading(tmp_path, monkeypatch, name, value):
    """What it does to activations is shown where memory takes the part of a GPU's."""
    calls: list[tuple[bool, int]] = []
    monkeypatch.setattr(sharding, "HostActivations", lambda *given: calls.append(given))
    engine_of(tmp_path, "actor", folder(), **{f"activation_offloading.{name}": str(value).lower()})
    assert calls == [(value, 5) if name == "pin_memory" else (True, value)]


@pytest.mark.shows("actor.debug.num_layers")
def test_num_layers_keeps_the_first_layers(tmp_path):
    engine = engine_of(tmp_path, "actor", folder(), **{"debug.num_layers": 1})
    assert len(engine.model.model.layers) == 1
    alone = loaded("grpo", "actor.debug.num_layers=1", "train_dataset.fake.seq_len=8").config
    assert list(served_first_layers(alone)) == []


@pytest.mark.shows("{where}.dist_timeout_s")
@pytest.mark.parametrize(("where", "kind"), [("actor", "grpo"), ("model", "sft")])
def test_dist_timeout_limits_the_wait_of_ranks(tmp_path, monkeypatch, where, kind):
    class Asked(Exception):
        pass

    def open_world(timeout_s: float) -> None:
        raise Asked(timeout_s)

    monkeypatch.setenv(TOKEN, "a secret")
    monkeypatch.setattr("areal_like.training.world.open_world", open_world)
    with pytest.raises(Asked, match="77"):
        main.main(make_run(tmp_path / "run", kind, f"{where}.dist_timeout_s=77"), ME)
