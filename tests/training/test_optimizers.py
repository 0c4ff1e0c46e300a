"""Optimizers: updates, memory, and resume."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from areal_like.config.sections.optimizer import OptimizerConfig
from areal_like.training import offload
from areal_like.training.adamw_bf16 import AdamWBf16
from areal_like.training.host_copies import HostCopies
from areal_like.training.offload import step_from_host, to_host
from areal_like.training.optimizers import embedding_parameters, make_optimizer
from tests.support.checkpoint_ranks import train
from tests.support.training_runs import make_engine, make_run, model_folder, section, start_from, world

TYPES = ("adam", "adam_bf16", "muon", "sgd")


def config_of(**settings) -> OptimizerConfig:
    actual: OptimizerConfig = section(OptimizerConfig, **settings)
    return actual


def gradients(num: int, shape: tuple[int, ...] = (12, 8)) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=draw) for _ in range(num)]


def weight_after(optimizer_of, grads: list[torch.Tensor], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    weight = nn.Parameter(torch.linspace(-1, 1, grads[0].numel()).view(grads[0].shape).to(dtype))
    optimizer = optimizer_of([weight])
    for gradient in grads:
        weight.grad = gradient.to(dtype)
        optimizer.step()
    return weight.detach().float()


def stepped(config: OptimizerConfig, values: list[float]) -> float:
    weight = nn.Parameter(torch.ones(1))
    optimizer = make_optimizer([weight], config)
    for value in values:
        weight.grad = torch.full((1,), value)
        optimizer.step()
    return weight.item()


def test_sgd_has_no_momentum_and_decoupled_weight_decay():
    plain = config_of(type="sgd", lr=0.1, momentum=0.0, weight_decay=0.0)
    assert stepped(plain, [1.0, 1.0]) == pytest.approx(0.8)

    decayed = config_of(type="sgd", lr=0.1, momentum=0.9, nesterov=False, weight_decay=0.5)
    assert stepped(decayed, [0.0, 0.0]) == pytest.approx(0.95**2)


def test_momentum_and_nesterov_give_the_known_steps():
    settings = {"type": "sgd", "lr": 0.1, "momentum": 0.5, "weight_decay": 0.0}

    assert stepped(config_of(nesterov=False, **settings), [1.0, 1.0]) == pytest.approx(1 - 0.1 - 0.15)
    assert stepped(config_of(nesterov=True, **settings), [1.0, 1.0]) == pytest.approx(1 - 0.15 - 0.175)


def test_adam_has_decoupled_weight_decay():
    config = config_of(type="adam", lr=0.1, weight_decay=0.5)
    assert stepped(config, [0.0]) == pytest.approx(0.95)
    assert stepped(config, [3.0]) == pytest.approx(0.95 - 0.1, abs=1e-5), "a first step is as long as the learning rate"


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_muon_makes_the_steps_of_torchs_muon(momentum, nesterov):
    """Torch's computes in bfloat16 everywhere, which is less exact."""
    ours = config_of(type="muon", lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=0.1)
    theirs = {"momentum": momentum, "nesterov": nesterov and momentum > 0, "adjust_lr_fn": "match_rms_adamw"}
    for shape in ((12, 8), (6, 20)):
        grads = gradients(4, shape)
        expected = weight_after(lambda given: torch.optim.Muon(given, lr=0.1, weight_decay=0.1, **theirs), grads)
        actual = weight_after(lambda given: make_optimizer(given, ours), grads)
        torch.testing.assert_close(actual, expected, atol=0.01, rtol=0.02)


def test_muon_leaves_embeddings_head_and_vectors_to_adam_at_the_same_learning_rate(tmp_path):
    engine = make_engine(model_folder(tmp_path, "llama"), type="muon", lr=0.01)
    names = {id(parameter): name for name, parameter in engine.model.named_parameters()}
    of_muon, of_adam = (
        {names[id(parameter)] for group in engine.optimizer.param_groups if group["is_muon"] == is_muon
         for parameter in group["params"]}
        for is_muon in (True, False)
    )  # fmt: skip

    assert of_muon == {name for name in names.values() if "_proj." in name}
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} <= of_adam
    assert of_muon | of_adam == set(names.values())
    grads = gradients(3)
    both = [weight_after(lambda given, kind=kind: make_optimizer(given, config_of(type=kind, lr=0.1),
            tables=given), grads) for kind in ("adam", "muon")]  # fmt: skip
    assert torch.equal(*both)


def test_muon_makes_one_step_of_each_expert_of_a_layer():
    config = config_of(type="muon", lr=0.1)
    each = [gradients(3, (5, 4)), [2 * gradient for gradient in gradients(3, (5, 4))]]
    stacked = weight_after(
        lambda given: make_optimizer(given, config), [torch.stack(two) for two in zip(*each, strict=True)]
    )
    start = torch.linspace(-1, 1, 40).view(2, 5, 4)
    for number in (0, 1):
        weight = nn.Parameter(start[number].clone())
        optimizer = make_optimizer([weight], config)
        for gradient in each[number]:
            weight.grad = gradient
            optimizer.step()
        torch.testing.assert_close(stacked[number], weight.detach())


def test_embeddings_and_heads_are_recognized_in_any_model(tmp_path):
    cases: list[tuple[str, dict[str, Any], set[str]]] = [
        ("qwen3", {}, {"model.embed_tokens.weight"}),
        ("llama", {}, {"model.embed_tokens.weight", "lm_head.weight"}),
        ("qwen3", {"is_critic": True}, {"model.embed_tokens.weight", "score.weight"}),
    ]
    for name, settings, expected in cases:
        model = make_engine(model_folder(tmp_path, name), **settings).model
        tables = {id(parameter) for parameter in embedding_parameters(model)}
        assert {name for name, parameter in model.named_parameters() if id(parameter) in tables} == expected


def test_adam_bf16_holds_its_moments_in_half_the_memory_and_steps_like_adam():
    weight = nn.Parameter(torch.randn(40, 30))
    optimizer = make_optimizer([weight], config_of(type="adam_bf16"))
    weight.grad = torch.randn(40, 30)
    optimizer.step()
    assert {kind: value.dtype for kind, value in optimizer.state[weight].items() if value.dim()} == {
        "exp_avg": torch.bfloat16,
        "exp_avg_sq": torch.bfloat16,
    }

    grads = gradients(50, (40, 30))
    start = torch.linspace(-1, 1, 1200).view(40, 30)
    exact, half = (
        weight_after(lambda given, kind=kind: make_optimizer(given, config_of(type=kind, lr=0.01)), grads) - start
        for kind in ("adam", "adam_bf16")
    )
    assert (exact - half).norm() < 0.01 * exact.norm()


def test_a_bfloat16_moment_decays_by_less_than_its_last_bit_per_step():
    """A decay of 0.999 changes it by a thousandth, and bfloat16 has steps of a 256th."""
    weight = nn.Parameter(torch.zeros(4096))
    optimizer = make_optimizer([weight], config_of(type="adam_bf16", beta1=0.999, beta2=0.999))
    for step in range(501):
        weight.grad = torch.full((4096,), 1.0 if step == 0 else 0.0)
        optimizer.step()
    for kind in ("exp_avg", "exp_avg_sq"):
        moment = optimizer.state[weight][kind].float()
        assert float(moment.mean()) == pytest.approx(0.001 * 0.999**500, rel=0.005)
        assert float(moment.std()) < 0.02 * float(moment.mean())


def test_bfloat16_weights_change_by_less_than_their_last_bit_per_step():
    weight = nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
    optimizer = make_optimizer([weight], config_of(type="adam_bf16", lr=1e-4, weight_decay=0.0))
    for _ in range(200):
        weight.grad = torch.ones(4096, dtype=torch.bfloat16)
        optimizer.step()
    assert float(weight.detach().float().mean()) == pytest.approx(1 - 200 * 1e-4, abs=5e-4)


def test_rounding_follows_from_place_and_step_so_that_a_resumed_run_rounds_alike():
    grads = gradients(6)
    whole = weight_after(lambda given: make_optimizer(given, config_of(type="adam_bf16", lr=0.1)), grads)

    weight = nn.Parameter(torch.linspace(-1, 1, 96).view(12, 8))
    optimizer = make_optimizer([weight], config_of(type="adam_bf16", lr=0.1))
    for number, gradient in enumerate(grads):
        if number == 3:
            state = {kind: value.clone() for kind, value in optimizer.state[weight].items()}
            optimizer = make_optimizer([weight], config_of(type="adam_bf16", lr=0.1))
            optimizer.state[weight] = state
        weight.grad = gradient
        optimizer.step()
    assert torch.equal(weight, whole)


@pytest.mark.parametrize("kind", TYPES)
def test_a_step_with_state_loaded_in_parts_is_the_same_step(kind):
    """Parts of one parameter each, and of all."""

    def after(at_once: int | None) -> list[torch.Tensor]:
        weights = [nn.Parameter(torch.linspace(-1, 1, 96).view(shape)) for shape in ((12, 8), (96,), (4, 24))]
        optimizer, memory = make_optimizer(weights, config_of(type=kind, lr=0.1)), HostCopies(keeps=False)
        groups = [group["params"] for group in optimizer.param_groups]
        for gradient in gradients(3):
            for weight in weights:
                weight.grad = gradient.view(weight.shape).clone()
            optimizer.step() if at_once is None else step_from_host(optimizer, memory, at_once)
        to_host(optimizer, memory)
        assert [group["params"] for group in optimizer.param_groups] == groups
        return [weight.detach() for weight in weights]

    usual = after(None)
    for at_once in (1, 1 << 20):
        assert all(torch.equal(one, other) for one, other in zip(usual, after(at_once), strict=True))


def test_offloaded_state_is_loaded_in_bounded_parts():
    weights = [nn.Parameter(torch.ones(100)) for _ in range(5)]
    optimizer = make_optimizer(weights, config_of())
    for weight in weights:
        weight.grad = torch.ones(100)
    seen: list[int] = []
    optimizer.register_step_pre_hook(
        lambda *_: seen.append(sum(len(group["params"]) for group in optimizer.param_groups))
    )
    step_from_host(optimizer, HostCopies(keeps=False), at_once=800)
    assert seen == [2, 2, 1]


def test_ranks_with_unequal_rows_load_the_same_parts(monkeypatch):
    """Seven rows over two ranks are four and three."""
    monkeypatch.setattr(offload, "shard_group", lambda _: SimpleNamespace(size=lambda: 2))
    actual = []
    for rows in (4, 3):
        monkeypatch.setattr(offload, "local_tensor", lambda tensor, rows=rows: tensor[:rows])
        parameters = [nn.Parameter(torch.zeros(7, 8)) for _ in range(7)]
        actual.append([len(part) for part in offload._in_parts(parameters, 250)])
    assert actual == [[2, 2, 2, 1]] * 2


def test_an_unknown_optimizer_is_named():
    with pytest.raises(ValueError, match=r"optimizer\.type: lion.*adam, adam_bf16, muon or sgd"):
        make_optimizer([nn.Parameter(torch.ones(1))], config_of(type="lion"))


def test_the_bfloat16_optimizer_has_a_separate_class():
    """Nothing else would keep a run from going on with those of another optimizer."""
    assert type(make_optimizer([nn.Parameter(torch.ones(1))], config_of(type="adam_bf16"))) is AdamWBf16


RESUMED = {
    "adam_bf16": ("model.dtype=float32", "model.optimizer.type=adam_bf16"),
    "float16": (
        "model.dtype=float16",
        "model.optimizer.initial_loss_scale=4096",
        "model.optimizer.loss_scale_window=1",
    ),
    "host": ("model.dtype=bfloat16", "model.optimizer.offload=true", "model.fsdp.offload_params=true"),
    "sent": ("model.dtype=bfloat16", "model.optimizer.type=muon", "model.fsdp.load_using_meta=true"),
}


@pytest.mark.parametrize("kind", RESUMED)
def test_two_steps_and_two_after_a_resume_are_four_bit_for_bit(tmp_path, kind):
    folder, ends = model_folder(tmp_path, "qwen3"), []
    for name, stop in (("whole", 4), ("resumed", 2)):
        words = (f"model.path={folder}", "model.optimizer.lr=0.01", "model.optimizer.warmup_steps=0", *RESUMED[kind])
        run = make_run(tmp_path / name, "sft", *words)
        train(run, stop, world())
        if stop < 4:
            train(start_from(run, run.checkpoints / "step_000002", 2, attempt=2), 4, world())
        ends.append(load_file(run.checkpoints / "step_000004" / "model.safetensors"))
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())
