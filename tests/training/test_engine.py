"""What an engine exports, and how it handles gradients that are not finite."""

import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from areal_like.config.problems import ConfigError
from areal_like.config.sections.train_engine import FSDPEngineConfig, FSDPWrapPolicy
from areal_like.process.errors import Failure
from areal_like.training.engine import TrainEngine
from areal_like.training.hf_folder import write_hf_folder
from areal_like.training.model import remove_dropout
from areal_like.training.sequences import MicroBatch, Sequences
from tests.support.training_runs import make_engine, model_folder, section, weights_of, world


def tokens(seed: int = 0) -> MicroBatch:
    draw = np.random.default_rng(seed)
    ids = draw.integers(0, 40, 12).astype(np.int32)
    return Sequences(ids, np.ones(12), np.array([6, 6])).micro_batch([0, 1], world().device)


def mean_loss(micro, logprobs, entropy):
    return -logprobs.mean()


@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_weights_are_exported_as_transformers_names_them_in_one_order_each_once(tmp_path, name):
    folder = model_folder(tmp_path, name)
    engine = make_engine(folder)
    exported = list(engine.export_weights())

    names = [name for name, _ in exported]
    assert names == [name for name, _ in AutoModelForCausalLM.from_pretrained(folder).named_parameters()]
    assert ("lm_head.weight" in names) == (name == "llama"), "a tied head is exported as the embedding"
    assert names == [name for name, _ in engine.export_weights()]
    assert all(type(tensor) is torch.Tensor for _, tensor in exported)


def test_weights_are_exported_in_the_precision_the_model_computes_in(tmp_path):
    engine = make_engine(model_folder(tmp_path, "qwen3"), dtype="bfloat16")

    assert {tensor.dtype for tensor in weights_of(engine).values()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in engine.parameters} == {torch.float32}
    assert engine.logprobs([tokens()], 1.0)[0].dtype == torch.float32


def test_an_update_that_is_not_finite_changes_nothing_and_is_counted(tmp_path, caplog):
    engine = make_engine(model_folder(tmp_path, "qwen3"))
    before = weights_of(engine)
    with caplog.at_level(logging.WARNING):
        part = engine.accumulate([tokens()], lambda micro, logprobs, entropy: logprobs.sum() * float("nan"))
        update = engine.step(0, part)

    assert update.is_skipped and "update skipped" in caplog.text
    assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(engine).items())
    assert not engine.step(1, engine.accumulate([tokens()], mean_loss)).is_skipped
    assert engine.consecutive_skips == 0


def test_too_many_skipped_updates_in_a_row_fail_the_run(tmp_path):
    engine = make_engine(model_folder(tmp_path, "qwen3"), max_skipped_in_a_row=3)
    for completed in range(2):
        engine.step(completed, torch.tensor(math.inf))
    with pytest.raises(Failure, match=r"actor\.optimizer\.lr.*not finite"):
        engine.step(9, torch.tensor(math.inf))


@pytest.mark.parametrize("most", [0.0, 0.25])
def test_the_gradient_is_scaled_down_to_the_largest_norm_allowed(tmp_path, most):
    engine = make_engine(model_folder(tmp_path, "qwen3"), type="sgd", momentum=0.0, lr=1.0, gradient_clipping=most)
    before = weights_of(engine)
    update = engine.step(0, engine.accumulate([tokens()], mean_loss))

    moved = sum((tensor - before[name]).square().sum() for name, tensor in weights_of(engine).items()) ** 0.5
    assert update.grad_norm > 0.3
    assert float(moved) == pytest.approx(most or update.grad_norm, rel=1e-4)


def test_activations_computed_again_give_the_same_gradient(tmp_path):
    folder = model_folder(tmp_path, "qwen3")
    updates = []
    for again in (False, True):
        engine = make_engine(folder, gradient_checkpointing=again)
        updates.append(engine.step(0, engine.accumulate([tokens()], mean_loss)))

    assert updates[0] == updates[1]


def test_random_weights_depend_only_on_the_seed(tmp_path):
    folder = model_folder(tmp_path, "qwen3")
    torch.manual_seed(5)
    first = weights_of(make_engine(folder, init_from_scratch=True))
    state = torch.random.get_rng_state()
    second = weights_of(make_engine(folder, init_from_scratch=True))

    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert torch.equal(state, torch.random.get_rng_state())
    assert not torch.equal(
        first["model.layers.0.mlp.up_proj.weight"], weights_of(make_engine(folder))["model.layers.0.mlp.up_proj.weight"]
    )


def test_layers_are_sharded_as_the_wrap_policy_names_them(tmp_path):
    folder = model_folder(tmp_path, "qwen3")
    policy = section(FSDPWrapPolicy, transformer_layer_cls_to_wrap=["Qwen3MLP"])
    engine = make_engine(folder, fsdp=section(FSDPEngineConfig, wrap_policy=policy))

    sharded = {type(module).__name__ for module in engine.module.modules() if type(module).__name__.startswith("FSDP")}
    assert sharded == {"FSDPQwen3MLP", "FSDPPackedModel"}
    with pytest.raises(ConfigError, match=r"transformer_layer_cls_to_wrap.*Qwen2Layer.*Qwen3DecoderLayer"):
        policy.transformer_layer_cls_to_wrap = ["Qwen2Layer"]
        make_engine(folder, fsdp=section(FSDPEngineConfig, wrap_policy=policy))


def test_a_folder_that_lacks_weights_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = model_folder(tmp_path, "qwen3")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(ConfigError, match=r"actor\.path.*model\.norm\.weight"):
        make_engine(folder)


def test_dropout_is_removed_from_every_module():
    class Attention(torch.nn.Module):
        attention_dropout = 0.3

    module = torch.nn.Sequential(torch.nn.Dropout(0.5), Attention())
    remove_dropout(module)

    assert module[0].p == 0 and module[1].attention_dropout == 0


def test_a_frozen_engine_has_no_optimizer_and_no_gradient(tmp_path):
    engine: TrainEngine = make_engine(model_folder(tmp_path, "qwen3"), optimizer=None)

    assert not hasattr(engine, "optimizer") and not any(p.requires_grad for p in engine.module.parameters())
    assert engine.logprobs([tokens()], 1.0)[0].shape == (10,)


VALUE_MODELS = ["qwen3", "llama", "gemma3"]


def placeholder(ids: list[list[int]], at_the_end: bool) -> MicroBatch:
    """Texts with one score each (at their last token), or with a value before each token."""
    rows = [[*row, 0] if at_the_end else row for row in ids]
    mask = np.concatenate([np.eye(1, len(row), len(row) - 1)[0] if at_the_end else np.ones(len(row)) for row in rows])
    lengths = np.array([len(row) for row in rows])
    return Sequences(np.concatenate(rows).astype(np.int32), mask, lengths).micro_batch(range(len(rows)), world().device)


def learnt_value_model(tmp_path: Path, name: str) -> tuple[TrainEngine, Path]:
    """A causal model that got a head, after a few steps, and the folder it was written to."""
    engine = make_engine(model_folder(tmp_path, name), is_critic=True, type="sgd", lr=0.1)
    for step in range(3):
        engine.step(step, engine.accumulate([tokens()], lambda micro, values, _: (values - 1).square().mean()))
    folder = tmp_path / "written"
    write_hf_folder(folder, engine.model, engine.folder, weights_of(engine), torch.float32)
    return engine, folder


@pytest.mark.parametrize("name", VALUE_MODELS)
def test_a_value_model_begins_at_zero_and_learns_with_all_its_layers(tmp_path, name):
    engine = make_engine(model_folder(tmp_path, name), is_critic=True, type="sgd", lr=0.1)
    assert engine.values([tokens()])[0].tolist() == [0.0] * 10
    before, losses = weights_of(engine), []
    for step in range(4):
        part = engine.accumulate([tokens()], lambda micro, values, _: (values - 1).square().mean())
        losses.append(engine.step(step, part).loss)

    assert losses[0] == 1.0 and losses == sorted(losses, reverse=True) and losses[-1] < 0.9
    assert all(not torch.equal(before[name], tensor) for name, tensor in weights_of(engine).items())


@pytest.mark.parametrize("name", VALUE_MODELS)
def test_transformers_loads_a_value_model_and_gives_the_same_numbers(tmp_path, name):
    engine, folder = learnt_value_model(tmp_path, name)
    texts = [[5, 6, 7], [8, 9, 10, 11, 12], [3, 4]]
    micro = placeholder(texts, at_the_end=True)
    actual = dict(zip(micro.rows_N.tolist(), engine.values([micro])[0].tolist(), strict=True))

    loaded = AutoModelForSequenceClassification.from_pretrained(folder)
    assert loaded.config.num_labels == 1
    for row, ids in enumerate(texts):
        expected = loaded(torch.tensor([ids])).logits.detach()
        assert expected.shape == (1, 1) and actual[row] == pytest.approx(float(expected), abs=1e-5)


def test_a_value_is_that_of_the_text_before_the_token(tmp_path):
    """The value of the state in which the token was chosen: the score of the text up to there."""
    engine, _ = learnt_value_model(tmp_path, "qwen3")
    each = engine.values([placeholder([[5, 6, 7, 8]], at_the_end=False)])[0]
    parts = [engine.values([placeholder([[5, 6, 7, 8][:end]], at_the_end=True)])[0] for end in (1, 2, 3)]

    torch.testing.assert_close(each, torch.cat(parts), atol=1e-6, rtol=1e-5)
    assert len(set(each.tolist())) == 3


def test_the_head_is_exported_and_loaded_again(tmp_path, caplog):
    engine, folder = learnt_value_model(tmp_path, "llama")
    assert weights_of(engine)["score.weight"].abs().sum() > 0
    assert not [name for name in weights_of(engine) if "lm_head" in name]

    for again in (make_engine(folder, is_critic=True), make_engine(folder, is_critic=True, optimizer=None)):
        assert torch.equal(again.values([tokens()])[0], engine.values([tokens()])[0])
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_frozen_value_model_without_a_head_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"actor\.path.*score\.weight"):
        make_engine(model_folder(tmp_path, "qwen3"), is_critic=True, optimizer=None)


def test_a_model_that_changes_its_logits_is_refused(tmp_path):
    folder = model_folder(tmp_path, "qwen3")
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace("{", '{"logits_scaling": 8.0,', 1))

    with pytest.raises(ConfigError, match=r"actor\.path.*logits_scaling"):
        make_engine(Path(folder))
