"""Effects of model keys, for each model of a trainer: loading and computation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from areal_like.config.problems import ConfigError
from areal_like.process.errors import Failure
from areal_like.training import attention
from areal_like.training.engine import TrainEngine
from areal_like.training.main import load_trained_engine
from areal_like.training.sequences import MicroBatch, Sequences
from tests.support.planning import of_role, plan_of
from tests.support.training_runs import make_run, model_folder, weights_of, world
from tests.training.test_engine import mean_loss, tokens

SECTIONS = ("actor", "ref", "critic", "model")
TRAINED = ("actor", "critic", "model")
KINDS = {"critic": "ppo", "model": "sft"}
PLAIN = {"dtype": "float32", "gradient_checkpointing": "false"}
A_WEIGHT = "model.layers.0.mlp.up_proj.weight"


def engine_of(root: Path, section: str, path: Path | str, **settings: Any) -> TrainEngine:
    """The engine of one section, by its keys alone: the reference's path is not that of the actor."""
    kind = KINDS.get(section, "grpo")
    words = [f"{section}.{name}={value}" for name, value in ({"path": path} | PLAIN | settings).items()]
    own = [] if kind == "sft" else ["rollout.backend=embedded", "actor.kl_ctl=0.1"]
    run = make_run(root / "run", kind, *own, *words)
    engine = load_trained_engine(run, getattr(run.config, section), section, world())
    with torch.no_grad():  # a new head says 0 whatever else is different
        for parameter in (each for name, each in engine.model.named_parameters() if name.startswith("score.")):
            parameter.fill_(0.1)
    return engine


def outputs_of(engine: TrainEngine) -> torch.Tensor:
    micros = [tokens()]
    return (engine.values(micros) if engine.config.is_critic else engine.logprobs(micros, 1.0))[0]


def gradient_of(engine: TrainEngine) -> list[torch.Tensor]:
    engine.accumulate([tokens()], mean_loss)
    return [engine._gradient(parameter).clone() for parameter in engine.parameters]


@pytest.mark.shows("{section}.path")
@pytest.mark.parametrize("section", SECTIONS)
def test_path_is_the_folder_of_the_weights(tmp_path, section):
    ours = weights_of(engine_of(tmp_path, section, model_folder(tmp_path, "qwen3")))
    assert ours[A_WEIGHT].shape == (48, 32)
    shipped = weights_of(engine_of(tmp_path, section, "builtin:tiny-addition"))
    assert shipped[A_WEIGHT].shape != ours[A_WEIGHT].shape


@pytest.mark.shows("{section}.init_from_scratch")
@pytest.mark.parametrize("section", SECTIONS)
def test_init_from_scratch_starts_with_random_weights(tmp_path, section):
    folder = model_folder(tmp_path, "qwen3")
    usual, random = (
        weights_of(engine_of(tmp_path, section, folder, init_from_scratch=value)) for value in ("false", "true")
    )
    assert not torch.equal(usual[A_WEIGHT], random[A_WEIGHT])


@pytest.mark.shows("{section}.dtype")
@pytest.mark.parametrize("section", SECTIONS)
def test_dtype_is_the_type_of_the_computation(tmp_path, section):
    folder = model_folder(tmp_path, "qwen3")
    single, half = (engine_of(tmp_path, section, folder, dtype=name) for name in ("float32", "bfloat16"))
    assert {tensor.dtype for tensor in weights_of(single).values()} == {torch.float32}
    assert {tensor.dtype for tensor in weights_of(half).values()} == {torch.bfloat16}
    apart = (outputs_of(single) - outputs_of(half)).abs().max()
    assert 1e-4 < float(apart) < 0.3


@pytest.mark.shows("{section}.disable_dropout")
@pytest.mark.parametrize("section", SECTIONS)
def test_disable_dropout_removes_dropout_from_the_model(tmp_path, section):
    folder = model_folder(tmp_path, "qwen3")
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"attention_dropout": 0.0', '"attention_dropout": 0.3'))
    actual = {
        value: {
            module.attention_dropout
            for module in engine_of(tmp_path, section, folder, disable_dropout=value).model.modules()
            if hasattr(module, "attention_dropout")
        }
        for value in ("false", "true")
    }
    assert actual == {"false": {0.3}, "true": {0.0}}


@pytest.mark.shows("{section}.gradient_checkpointing")
@pytest.mark.parametrize("section", TRAINED)
def test_gradient_checkpointing_computes_layers_again(tmp_path, section, monkeypatch):
    """Twice as many forward passes of each layer, and the same gradient."""
    folder, runs, gradients = model_folder(tmp_path, "qwen3"), {}, {}
    for value in ("false", "true"):
        engine, count = engine_of(tmp_path, section, folder, gradient_checkpointing=value), [0]
        first = next(module for module in engine.model.modules() if type(module).__name__.endswith("Qwen3MLP"))
        first.register_forward_pre_hook(lambda *_, count=count: count.__setitem__(0, count[0] + 1))
        gradients[value] = gradient_of(engine)
        runs[value] = count[0]
    assert runs == {"false": 1, "true": 2}
    assert all(torch.equal(one, other) for one, other in zip(gradients["false"], gradients["true"], strict=True))


@pytest.mark.shows("{section}.grad_reduce_dtype")
@pytest.mark.parametrize("section", TRAINED)
def test_grad_reduce_dtype_is_the_type_of_summed_gradients(tmp_path, section):
    folder = model_folder(tmp_path, "qwen3")
    single, half = (
        gradient_of(engine_of(tmp_path, section, folder, grad_reduce_dtype=name)) for name in ("float32", "bfloat16")
    )
    rounded = [gradient.bfloat16().float() for gradient in single]
    assert not all(torch.equal(one, other) for one, other in zip(single, rounded, strict=True))
    assert all(torch.equal(gradient, gradient.bfloat16().float()) for gradient in half)


@pytest.mark.shows("{section}.backend")
@pytest.mark.parametrize(("section", "experiment"), [("actor", "grpo"), ("model", "sft")])
def test_backend_is_the_number_of_ranks(section, experiment):
    for ranks in (1, 3):
        plan = plan_of(experiment, f"{section}.backend=fsdp:d{ranks}")
        assert plan.cannot_start == ()
        environments = [process.env for process in of_role(plan, "trainer")]
        assert [each["RANK"] for each in environments] == [str(rank) for rank in range(ranks)]
        assert {each["WORLD_SIZE"] for each in environments} == {str(ranks)}


@pytest.mark.shows("ref.backend")
def test_the_backend_of_the_reference_must_be_the_actors():
    with pytest.raises(ConfigError, match=r"^ref\.backend .*takes 3 devices, but ref runs in the processes of actor"):
        plan_of("grpo", "actor.kl_ctl=0.1", "ref.backend=fsdp:d3")
    plan = plan_of("grpo", "actor.kl_ctl=0.1", "actor.backend=fsdp:d3")
    assert plan.allocation["ref"]["world_size"] == len(of_role(plan, "trainer")) == 3


# How a batch is cut, and how attention is computed

LENGTHS = np.array([7, 3, 12, 7, 2, 7])


def sequences() -> Sequences:
    draw = np.random.default_rng(1)
    return Sequences(draw.integers(0, 40, LENGTHS.sum()).astype(np.int32), np.ones(LENGTHS.sum()), LENGTHS)


def micros_of(root: Path, section: str, **settings: Any) -> list[MicroBatch]:
    spec = {name if name == "pad_to_maximum" else f"mb_spec.{name}": value for name, value in settings.items()}
    return engine_of(root, section, model_folder(root, "qwen3"), **spec).micro_batches(sequences(), range(len(LENGTHS)))


@pytest.mark.shows("{section}.mb_spec.n_mbs")
@pytest.mark.parametrize("section", SECTIONS)
def test_n_mbs_is_the_least_number_of_micro_batches(tmp_path, section):
    assert [len(micros_of(tmp_path, section, n_mbs=number)) for number in ("1", "3", "null")] == [1, 3, 1]


@pytest.mark.shows("{section}.mb_spec.max_tokens_per_mb")
@pytest.mark.parametrize("section", SECTIONS)
def test_max_tokens_per_mb_limits_the_tokens_of_a_micro_batch(tmp_path, section):
    micros = micros_of(tmp_path, section, max_tokens_per_mb=14)
    assert len(micros) > 1 and max(len(micro.input_ids_T) for micro in micros) <= 14
    with pytest.raises(Failure, match=rf"^{section}\.mb_spec\.max_tokens_per_mb: sequence 2 has 11 tokens"):
        micros_of(tmp_path, section, max_tokens_per_mb=10)


@pytest.mark.shows("{section}.mb_spec.granularity")
@pytest.mark.parametrize("section", SECTIONS)
def test_granularity_keeps_neighbours_together(tmp_path, section):
    rows = [set(micro.rows_N.tolist()) for micro in micros_of(tmp_path, section, n_mbs=3, granularity=2)]
    assert sorted(map(sorted, rows)) == [[0, 1], [2, 3], [4, 5]]
    assert rows != [set(micro.rows_N.tolist()) for micro in micros_of(tmp_path, section, n_mbs=3)]


@pytest.mark.shows("{section}.pad_to_maximum")
@pytest.mark.parametrize("section", SECTIONS)
def test_pad_to_maximum_makes_all_micro_batches_of_one_size(tmp_path, section):
    sizes = {
        value: {
            len(micro.input_ids_T) for micro in micros_of(tmp_path, section, max_tokens_per_mb=20, pad_to_maximum=value)
        }
        for value in ("false", "true")
    }
    assert sizes["true"] == {20} and max(sizes["false"]) < 20
    with pytest.raises(
        ConfigError, match=rf"{section}\.mb_spec\.max_tokens_per_mb.*{section}\.pad_to_maximum pads to it"
    ):
        micros_of(tmp_path, section, pad_to_maximum="true")


@pytest.mark.shows("{section}.attn_impl")
@pytest.mark.parametrize("section", SECTIONS)
def test_attn_impl_is_passed_to_transformers(tmp_path, section):
    folder = model_folder(tmp_path, "qwen3")
    implementations = {
        value: engine_of(tmp_path, section, folder, attn_impl=value).model.config._attn_implementation
        for value in ("auto", "sdpa", "eager", "flex_attention")
    }
    assert implementations["flex_attention"] == "flex_attention"
    assert (
        implementations["auto"] == implementations["sdpa"] == attention.REGISTERED_NAMES["sdpa"]
        and implementations["eager"] == attention.REGISTERED_NAMES["eager"]
    )


@pytest.mark.shows("{section}.is_critic")
@pytest.mark.parametrize("section", SECTIONS)
def test_is_critic_gives_the_head_that_a_model_needs(tmp_path, section):
    folder, gives_numbers = model_folder(tmp_path, "qwen3"), section == "critic"
    heads = {name for name in weights_of(engine_of(tmp_path, section, folder)) if "score" in name}
    assert heads == ({"score.weight"} if gives_numbers else set())
    with pytest.raises(ConfigError, match=rf"{section}\.is_critic.*leave it out"):
        engine_of(tmp_path, section, folder, is_critic=str(not gives_numbers).lower())


def test_is_critic_makes_a_reward_model(tmp_path):
    run = make_run(
        tmp_path / "run", "reward_model", f"model.path={model_folder(tmp_path, 'qwen3')}", "model.dtype=float32"
    )
    assert "score.weight" in weights_of(load_trained_engine(run, run.config.model, "model", world()))
    with pytest.raises(ConfigError, match=r"model\.is_critic.*leave it out"):
        make_run(tmp_path / "run", "reward_model", "model.is_critic=false")


# Adapters


def adapted(root: Path, section: str, **settings: Any) -> TrainEngine:
    return engine_of(root, section, model_folder(root, "qwen3"), use_lora="true", disable_dropout="true", **settings)


def low_of(engine: TrainEngine) -> torch.Tensor:
    """The first matrix of an adapter."""
    return next(tensor for name, tensor in engine.export_weights(adapter_only=True) if "up_proj.lora_A" in name)


@pytest.mark.shows("{section}.use_lora")
@pytest.mark.parametrize("section", TRAINED)
def test_use_lora_trains_adapters_alone(tmp_path, section):
    usual, engine = engine_of(tmp_path, section, model_folder(tmp_path, "qwen3")), adapted(tmp_path, section)
    assert usual.adapter is None and engine.adapter is not None
    names = {name for name, parameter in engine.model.named_parameters() if parameter.requires_grad}
    assert all(".lora_" in name or "score" in name for name in names) and len(names) == len(engine.parameters)


@pytest.mark.shows("{section}.lora_rank")
@pytest.mark.parametrize("section", TRAINED)
def test_lora_rank_is_the_rank_of_the_adapters(tmp_path, section):
    assert [low_of(adapted(tmp_path, section, lora_rank=rank)).shape for rank in (3, 5)] == [(3, 32), (5, 32)]


@pytest.mark.shows("{section}.lora_alpha")
@pytest.mark.parametrize("section", TRAINED)
def test_lora_alpha_is_the_strength_of_the_adapters(tmp_path, section):
    changes = []
    for alpha in (8, 12.5):
        engine = adapted(tmp_path, section, lora_alpha=alpha)
        before = weights_of(engine)[A_WEIGHT]
        with torch.no_grad():
            for name, parameter in engine.model.named_parameters():
                if "lora_B" in name:
                    parameter.fill_(1.0)
        changes.append(weights_of(engine)[A_WEIGHT] - before)
    assert float(changes[0].abs().max()) > 0.01
    torch.testing.assert_close(changes[1], 12.5 / 8 * changes[0])


@pytest.mark.shows("{section}.target_modules")
@pytest.mark.parametrize("section", TRAINED)
def test_target_modules_selects_the_layers_with_adapters(tmp_path, section):
    actual = {
        value: {
            name.split(".")[-3] for name, _ in adapted(tmp_path, section, target_modules=value).export_weights(True)
        }
        for value in ("[q_proj]", "['.*mlp.*']")
    }
    assert {name for name in actual["[q_proj]"] if name.endswith("_proj")} == {"q_proj"}
    assert {name for name in actual["['.*mlp.*']"] if name.endswith("_proj")} == {"up_proj", "gate_proj", "down_proj"}


@pytest.mark.shows("{section}.peft_type")
@pytest.mark.parametrize("section", TRAINED)
def test_peft_type_is_the_kind_of_adapter(tmp_path, section):
    engine = adapted(tmp_path, section, peft_type="lora")
    assert engine.adapter is not None and engine.adapter.peft_config["peft_type"] == "LORA"
    with pytest.raises(ConfigError, match=rf"{section}\.peft_type.*lora"):
        adapted(tmp_path, section, peft_type="ia3")


@pytest.mark.shows("{section}.lora_dropout")
@pytest.mark.parametrize("section", TRAINED)
def test_lora_dropout_drops_inputs_of_adapters(tmp_path, section):
    gradients = []
    for rate in (0, 0, 0.5):
        engine = adapted(tmp_path, section, lora_dropout=rate)
        with engine.seeded(3):
            gradients.append(torch.cat([part.flatten() for part in gradient_of(engine)]))
    assert torch.equal(gradients[0], gradients[1]) and not torch.equal(gradients[0], gradients[2])


@pytest.mark.shows("{section}.lora_modules_to_save")
@pytest.mark.parametrize("section", TRAINED)
def test_lora_modules_to_save_are_trained_in_full(tmp_path, section):
    usual = len(adapted(tmp_path, section).parameters)
    engine = adapted(tmp_path, section, lora_modules_to_save="[input_layernorm]")
    assert len(engine.parameters) == usual + 2
    assert "base_model.model.model.layers.0.input_layernorm.weight" in dict(engine.export_weights(adapter_only=True))
