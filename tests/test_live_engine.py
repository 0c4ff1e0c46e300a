"""What keys of a model do, for each model that a trainer holds: where it comes from, and how it computes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from areal_like.config.problems import ConfigError
from areal_like.training.engine import Engine
from areal_like.training.main import load_trained
from tests.planning import of_role, plan_of
from tests.test_training_engine import mean_loss, tokens
from tests.training_runs import make_run, model_folder, weights_of, world

SECTIONS = ("actor", "ref", "model")
TRAINED = ("actor", "model")
PLAIN = {"dtype": "float32", "gradient_checkpointing": "false"}
A_WEIGHT = "model.layers.0.mlp.up_proj.weight"


def engine_of(root: Path, section: str, path: Path | str, **settings: Any) -> Engine:
    """The engine of one section, by its keys alone: the reference's path is not that of the actor."""
    kind = "sft" if section == "model" else "grpo"
    words = [f"{section}.{name}={value}" for name, value in ({"path": path} | PLAIN | settings).items()]
    own = ["rollout.backend=embedded", "actor.kl_ctl=0.1"] if kind == "grpo" else []
    run = make_run(root / "run", kind, *own, *words)
    return load_trained(run, getattr(run.config, section), section, world())


def gradient_of(engine: Engine) -> list[torch.Tensor]:
    engine.accumulate([tokens()], mean_loss)
    return [engine._gradient(parameter).clone() for parameter in engine.parameters]


@pytest.mark.parametrize("section", SECTIONS)
def test_path_is_where_the_weights_are(tmp_path, section):
    ours = weights_of(engine_of(tmp_path, section, model_folder(tmp_path, "qwen3")))
    assert ours[A_WEIGHT].shape == (48, 32)
    shipped = weights_of(engine_of(tmp_path, section, "builtin:tiny-addition"))
    assert shipped[A_WEIGHT].shape != ours[A_WEIGHT].shape


@pytest.mark.parametrize("section", SECTIONS)
def test_init_from_scratch_begins_with_random_weights(tmp_path, section):
    folder = model_folder(tmp_path, "qwen3")
    usual, random = (
        weights_of(engine_of(tmp_path, section, folder, init_from_scratch=said)) for said in ("false", "true")
    )
    assert not torch.equal(usual[A_WEIGHT], random[A_WEIGHT])


@pytest.mark.parametrize("section", SECTIONS)
def test_dtype_is_what_is_computed_in(tmp_path, section):
    folder = model_folder(tmp_path, "qwen3")
    single, half = (engine_of(tmp_path, section, folder, dtype=name) for name in ("float32", "bfloat16"))
    assert {tensor.dtype for tensor in weights_of(single).values()} == {torch.float32}
    assert {tensor.dtype for tensor in weights_of(half).values()} == {torch.bfloat16}
    apart = (single.logprobs([tokens()], 1.0)[0] - half.logprobs([tokens()], 1.0)[0]).abs().max()
    assert 1e-4 < float(apart) < 0.3


@pytest.mark.parametrize("section", SECTIONS)
def test_disable_dropout_takes_it_out_of_the_model(tmp_path, section):
    folder = model_folder(tmp_path, "qwen3")
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"attention_dropout": 0.0', '"attention_dropout": 0.3'))
    found = {
        said: {
            module.attention_dropout
            for module in engine_of(tmp_path, section, folder, disable_dropout=said).causal.modules()
            if hasattr(module, "attention_dropout")
        }
        for said in ("false", "true")
    }
    assert found == {"false": {0.3}, "true": {0.0}}


@pytest.mark.parametrize("section", TRAINED)
def test_gradient_checkpointing_computes_layers_again(tmp_path, section, monkeypatch):
    """Twice as many forward passes of each layer, and the same gradient."""
    folder, runs, gradients = model_folder(tmp_path, "qwen3"), {}, {}
    for said in ("false", "true"):
        engine, count = engine_of(tmp_path, section, folder, gradient_checkpointing=said), [0]
        first = next(module for module in engine.causal.modules() if type(module).__name__.endswith("Qwen3MLP"))
        first.register_forward_pre_hook(lambda *_, count=count: count.__setitem__(0, count[0] + 1))
        gradients[said] = gradient_of(engine)
        runs[said] = count[0]
    assert runs == {"false": 1, "true": 2}
    assert all(torch.equal(one, other) for one, other in zip(gradients["false"], gradients["true"], strict=True))


@pytest.mark.parametrize("section", TRAINED)
def test_grad_reduce_dtype_is_what_gradients_are_added_up_in(tmp_path, section):
    folder = model_folder(tmp_path, "qwen3")
    single, half = (
        gradient_of(engine_of(tmp_path, section, folder, grad_reduce_dtype=name)) for name in ("float32", "bfloat16")
    )
    rounded = [gradient.bfloat16().float() for gradient in single]
    assert not all(torch.equal(one, other) for one, other in zip(single, rounded, strict=True))
    assert all(torch.equal(gradient, gradient.bfloat16().float()) for gradient in half)


@pytest.mark.parametrize(("section", "experiment"), [("actor", "grpo"), ("model", "sft")])
def test_backend_is_the_number_of_ranks(section, experiment):
    for ranks in (1, 3):
        plan = plan_of(experiment, f"{section}.backend=fsdp:d{ranks}")
        assert plan.cannot_start == ()
        environments = [process.env for process in of_role(plan, "trainer")]
        assert [each["RANK"] for each in environments] == [str(rank) for rank in range(ranks)]
        assert {each["WORLD_SIZE"] for each in environments} == {str(ranks)}


def test_the_backend_of_the_reference_is_that_of_the_actor():
    with pytest.raises(ConfigError, match=r"^ref\.backend .*takes 3 devices, but ref runs in the processes of actor"):
        plan_of("grpo", "actor.kl_ctl=0.1", "ref.backend=fsdp:d3")
    plan = plan_of("grpo", "actor.kl_ctl=0.1", "actor.backend=fsdp:d3")
    assert plan.allocation["ref"]["world_size"] == len(of_role(plan, "trainer")) == 3
