"""LoRA: what is trained and exported, with an unchanged base model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from areal_like.config.problems import ConfigError
from areal_like.training.checkpoint import CheckpointManager
from areal_like.training.engine import TrainEngine
from areal_like.training.full_tensor import full_tensor
from areal_like.training.hf_folder import write_hf_folder
from areal_like.training.main import _reference, load_trained_engine
from areal_like.training.progress import TrainingProgress
from areal_like.training.reference import BaseModelReference, ReferenceModel
from areal_like.weights.disk import publish_weights
from tests.support.training_runs import ME, make_engine, make_run, model_folder, start_from, weights_of, world
from tests.training.test_checkpoint import learn, written
from tests.training.test_engine import mean_loss, tokens

LORA: dict[str, Any] = {"use_lora": True, "lora_rank": 4, "lora_alpha": 8}
LINEAR = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def trained(folder: Path, num_steps: int = 3, **settings: Any) -> TrainEngine:
    engine = make_engine(folder, **{**LORA, **settings})
    for step in range(num_steps):
        engine.step(step, engine.accumulate([tokens()], mean_loss))
    return engine


def adapter_of(engine: TrainEngine) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in engine.export_weights(adapter_only=True)}


def write_adapter(engine: TrainEngine, folder: Path) -> Path:
    """As peft reads it."""
    assert engine.adapter is not None
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(engine.adapter.peft_config))
    save_file(adapter_of(engine), folder / "adapter_model.safetensors")
    return folder


def logprobs_of(model: Any) -> Tensor:
    """By transformers, sequence by sequence."""
    micro = tokens()
    rows = micro.input_ids_T.reshape(2, -1)
    actual = model(rows).logits.log_softmax(-1).flatten(0, 1)
    picked: Tensor = actual.gather(-1, micro.targets_P[:, None]).squeeze(-1)
    return picked.detach()


def test_an_untrained_adapter_changes_nothing(tmp_path):
    folder = model_folder(tmp_path, "qwen3")
    base, engine = make_engine(folder), make_engine(folder, **LORA)

    assert torch.equal(engine.logprobs([tokens()], 1.0)[0], base.logprobs([tokens()], 1.0)[0])
    exported = weights_of(engine)
    assert list(exported) == list(weights_of(base))
    assert all(torch.equal(tensor, exported[name]) for name, tensor in weights_of(base).items())
    assert engine.num_weights == base.num_weights


@pytest.mark.parametrize("name", ["qwen3", "llama", "gemma3"])
def test_the_adapter_alone_is_trained_and_has_state(tmp_path, name):
    engine = trained(model_folder(tmp_path, name))
    base = AutoModelForCausalLM.from_pretrained(engine.folder).state_dict()

    assert len(engine.optimizer.state) == len(engine.parameters) == 2 * 7 * 2
    after = {name.replace(".base_layer.", "."): tensor for name, tensor in engine.model.named_parameters()}
    kept = [name for name in base if name in after]
    assert len(kept) >= len(base) - 1, "all but a tied head"
    assert all(torch.equal(full_tensor(after[name]), base[name]) for name in kept)


@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_exported_weights_match_peft_and_the_engine(tmp_path, name):
    engine = trained(model_folder(tmp_path, name), lora_modules_to_save=["norm"] if name == "qwen3" else ["lm_head"])
    base = AutoModelForCausalLM.from_pretrained(engine.folder)
    loaded: Any = PeftModel.from_pretrained(base, write_adapter(engine, tmp_path / "adapter"))
    expected = engine.logprobs([tokens()], 1.0)[0]
    torch.testing.assert_close(logprobs_of(loaded), expected, atol=1e-5, rtol=0)

    merged = loaded.merge_and_unload().state_dict()
    for weight, tensor in weights_of(engine).items():
        torch.testing.assert_close(tensor, merged[weight], atol=1e-6, rtol=1e-5, msg=weight)
    write_hf_folder(tmp_path / "whole", engine.model, engine.folder, weights_of(engine), torch.float32)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    torch.testing.assert_close(logprobs_of(again), expected, atol=1e-5, rtol=0)


def test_weights_are_merged_from_the_unchanged_base_each_time(tmp_path):
    """In half precision merging what was merged would round again and again."""
    engine = trained(model_folder(tmp_path, "qwen3"), dtype="bfloat16")
    assert {parameter.dtype for parameter in engine.parameters} == {torch.float32}
    first = weights_of(engine)
    assert all(torch.equal(tensor, first[name]) for name, tensor in weights_of(engine).items())
    assert engine.logprobs([tokens()], 1.0)[0].dtype == torch.float32

    (low, high), name = list(adapter_of(engine).items())[:2], "model.layers.0.self_attn.q_proj.weight"
    assert "q_proj.lora_A" in low[0] and "q_proj.lora_B" in high[0]
    base = AutoModelForCausalLM.from_pretrained(engine.folder, dtype=torch.bfloat16).state_dict()[name]
    own = dict(engine.model.named_parameters())
    a, b = (full_tensor(own[f"model.layers.0.self_attn.q_proj.lora_{which}.default.weight"]) for which in "AB")
    assert torch.equal(first[name], (base.float() + 2.0 * (b @ a)).bfloat16())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_the_adapter_the_model_is_the_initial_one(tmp_path, dtype):
    """Also before the first update, with training after it."""
    folder = model_folder(tmp_path, "llama")
    base = make_engine(folder, optimizer=None, dtype=dtype).logprobs([tokens()], 1.0)[0]
    engine = make_engine(folder, **LORA, lora_modules_to_save=["lm_head"], dtype=dtype)
    with engine.adapter_disabled():
        assert torch.equal(engine.logprobs([tokens()], 1.0)[0], base)
    losses = [engine.step(step, engine.accumulate([tokens()], mean_loss)).loss for step in range(3)]
    with engine.adapter_disabled():
        assert torch.equal(engine.logprobs([tokens()], 1.0)[0], base)
    losses.append(engine.step(3, engine.accumulate([tokens()], mean_loss)).loss)

    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.1
    assert not torch.equal(engine.logprobs([tokens()], 1.0)[0], base)


@pytest.mark.parametrize(("changed", "is_shared"), [({}, True), ({"ref.dtype": "bfloat16"}, False)])
def test_a_reference_with_the_same_base_is_the_model_without_adapter(tmp_path, changed, is_shared):
    folder = model_folder(tmp_path, "qwen3")
    settings = {
        "actor.path": folder,
        "actor.use_lora": "true",
        "actor.kl_ctl": 0.1,
        "actor.dtype": "float32",
        **changed,
    }
    run = make_run(tmp_path / "run", "grpo", "rollout.backend=embedded", *(f"{k}={v}" for k, v in settings.items()))
    actor = load_trained_engine(run, run.config.actor, "actor", world())
    actor.step(0, actor.accumulate([tokens()], mean_loss))
    reference = _reference(run, actor)

    assert isinstance(reference, ReferenceModel)
    assert isinstance(reference.engine, BaseModelReference) == is_shared
    expected = make_engine(folder, optimizer=None, dtype=run.config.ref.dtype).logprobs([tokens()], 1.0)[0]
    assert torch.equal(reference.engine.logprobs([tokens()], 1.0)[0], expected)


@pytest.mark.parametrize(
    ("targets", "adapted"),
    [
        ([], LINEAR),
        (["all-linear"], LINEAR),
        (["q_proj", "v_proj"], ["q_proj", "v_proj"]),
        (["self_attn.k_proj"], ["k_proj"]),
        ([r".*\.(gate|up)_proj"], ["gate_proj", "up_proj"]),
        ([r"model\.layers\.1\..*_proj"], [f"model.layers.1.mlp.{each}" for each in LINEAR[:2]]),
        (["model.layers.0.mlp.up_proj", "q_proj"], ["model.layers.0.mlp.up_proj"]),
    ],
)
def test_adapters_are_on_the_target_modules(tmp_path, targets, adapted):
    """By name or by regular expression; stored by their last names if unambiguous."""
    engine = make_engine(model_folder(tmp_path, "qwen3"), **LORA, target_modules=targets)
    assert engine.adapter is not None
    targets = engine.adapter.peft_config["target_modules"]
    assert set(adapted) <= set(targets)
    again = get_peft_model(AutoModelForCausalLM.from_pretrained(engine.folder), LoraConfig(r=4, target_modules=targets))
    theirs = {name.replace(".default.", ".") for name, each in again.named_parameters() if each.requires_grad}
    assert theirs == set(adapter_of(engine))
    assert {name.split(".")[-3] for name in theirs} == {name.rpartition(".")[2] for name in targets}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"target_modules": ["q_proj", "query"]},
            r"^actor\.target_modules: .*no module that matches query .*down.*v_",
        ),
        ({"target_modules": ["(q"]}, r"^actor\.target_modules: .*no module that matches \(q "),
        (
            {"target_modules": ["embed_tokens"]},
            r"^actor\.target_modules: embed_tokens is not a linear layer but Embed",
        ),
        (
            {"target_modules": ["lm_head"]},
            r"^actor\.target_modules: lm_head is the model.s head.*actor\.lora_modules_to_save",
        ),
        ({"target_modules": ["k_proj"], "lora_modules_to_save": ["self_attn"]}, "k_proj is fully trained by"),
        (
            {"lora_modules_to_save": ["head"]},
            r"^actor\.lora_modules_to_save: .*no module head; its modules are.*lm_head",
        ),
        ({"lora_modules_to_save": ["lm_head"]}, r"^actor\.lora_modules_to_save: lm_head shares its weight"),
        ({"lora_modules_to_save": ["embed_tokens"]}, r"^actor\.lora_modules_to_save: model\.embed_tokens shares"),
    ],
)
def test_target_modules_that_match_nothing_list_the_existing_ones(tmp_path, settings, words):
    with pytest.raises(ConfigError, match=words):
        make_engine(model_folder(tmp_path, "qwen3"), **LORA, **settings)


def test_modules_to_save_are_trained_in_full(tmp_path):
    engine = trained(model_folder(tmp_path, "llama"), lora_modules_to_save=["embed_tokens", "lm_head"])
    base = AutoModelForCausalLM.from_pretrained(engine.folder).state_dict()
    exported, adapter = weights_of(engine), adapter_of(engine)

    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert not torch.equal(exported[name], base[name])
        assert torch.equal(adapter[f"base_model.model.{name}"], exported[name])
    assert torch.equal(exported["model.norm.weight"], base["model.norm.weight"])


def test_a_value_model_trains_its_head_beside_the_adapter(tmp_path):
    engine = make_engine(model_folder(tmp_path, "qwen3"), **LORA, is_critic=True)
    for step in range(3):
        engine.step(step, engine.accumulate([tokens()], lambda micro, values, _: (values - 1).square().mean()))
    exported = weights_of(engine)

    assert exported["score.weight"].abs().sum() > 0
    write_hf_folder(tmp_path / "whole", engine.model, engine.folder, exported, torch.float32)
    again = make_engine(tmp_path / "whole", is_critic=True)
    torch.testing.assert_close(again.values([tokens()])[0], engine.values([tokens()])[0], atol=1e-5, rtol=0)
    base = AutoModelForSequenceClassification.from_pretrained(engine.folder, num_labels=1)
    loaded: Any = PeftModel.from_pretrained(base, write_adapter(engine, tmp_path / "adapter"))
    assert torch.equal(loaded.base_model.model.score.weight, exported["score.weight"])


def test_dropout_of_adapters_is_the_same_where_activations_are_computed_again(tmp_path):
    folder, actual = model_folder(tmp_path, "qwen3"), {}
    for dropout, again in ((0.0, False), (0.5, False), (0.5, True)):
        settings: dict[str, Any] = {"lora_dropout": dropout, "gradient_checkpointing": again}
        engine = make_engine(folder, **LORA, **settings, disable_dropout=True)
        with engine.seeded(7):
            actual[dropout, again] = engine.step(0, engine.accumulate([tokens()], mean_loss))
        assert torch.equal(engine.logprobs([tokens()], 1.0)[0], engine.logprobs([tokens()], 1.0)[0])

    assert actual[0.5, False] == actual[0.5, True]
    assert actual[0.0, False].grad_norm != actual[0.5, False].grad_norm


def test_a_resumed_engine_equals_one_that_never_stopped(tmp_path):
    """The base is read from where it was read at first, and the adapter from the resume state."""
    folder = model_folder(tmp_path, "llama")
    run = make_run(tmp_path / "run", "sft", f"model.path={folder}", "recover.freq_steps=2")
    settings = {**LORA, "lora_modules_to_save": ["lm_head"], "init_from_scratch": True}
    engine = make_engine(folder, **settings)
    for completed in range(2):
        learn(engine, completed)
    checkpoint = written(run, engine, 2)
    for completed in range(2, 4):
        learn(engine, completed)

    again = make_engine(folder, checkpoint, **settings)
    start_from(run, checkpoint, 2, attempt=2)
    CheckpointManager(run, world(), 100).resume({"actor": again}, TrainingProgress(run, ME, world()))
    for completed in range(2, 4):
        learn(again, completed)

    for name, tensor in {**weights_of(engine), **adapter_of(engine)}.items():
        assert torch.equal(tensor, {**weights_of(again), **adapter_of(again)}[name]), name


def test_only_one_bucket_of_merged_weights_is_in_memory(tmp_path):
    engine = trained(model_folder(tmp_path, "llama"), num_steps=1)
    largest = max(tensor.nbytes for tensor in weights_of(engine).values())
    alive: dict[int, int] = {}
    most = [0]

    class Counted(torch.Tensor):
        def __del__(self) -> None:
            alive.pop(id(self), None)

    def counted():
        for name, tensor in engine.export_weights():
            copy = tensor.clone().as_subclass(Counted)
            alive[id(copy)] = copy.nbytes
            most[0] = max(most[0], sum(alive.values()))
            yield name, copy
            del copy

    publish_weights(tmp_path / "weights", 1, counted(), None, "run", max_bucket_bytes=2 * largest)
    assert 0 < most[0] <= 3 * largest, "a bucket, and the tensor that did not fit into it any more"


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys")
def test_adapters_of_fused_experts_are_refused_and_buffers_keep_their_names(tmp_path):
    folder = model_folder(tmp_path, "deepseek_v3")
    with pytest.raises(ConfigError, match=r"^actor\.target_modules: matches experts"):
        make_engine(folder, attn_impl="eager", use_lora=True)
    engine = make_engine(folder, attn_impl="eager", use_lora=True, target_modules=["o_proj"])
    plain = make_engine(folder, attn_impl="eager")
    assert weights_of(engine).keys() == weights_of(plain).keys() and engine.num_weights == plain.num_weights
