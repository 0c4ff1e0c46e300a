"""The weights of a checkpoint are a folder that other tools load, in the configured files and format."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from areal_like.config.problems import ConfigError
from areal_like.models import model_folder as shipped
from areal_like.process.run import Run
from areal_like.serving.engines.embedded.weights.double_buffer import DoubleBuffer
from areal_like.training.checkpoint import CheckpointManager
from areal_like.training.checkpoint_content import CheckpointPurpose
from areal_like.training.engine import TrainEngine
from areal_like.training.hf_folder import write_hf_folder
from areal_like.training.progress import TrainingProgress
from areal_like.training.sequences import Sequences
from areal_like.training.transports.disk import weight_bytes
from areal_like.weights.hub_names import HubNames
from tests.support.planning import loaded
from tests.support.training_runs import ME, make_engine, make_run, model_folder, weights_of, world


def run_with(tmp_path: Path, *overrides: str) -> Run:
    return make_run(tmp_path / "run", "sft", f"model.path={model_folder(tmp_path, 'llama')}", *overrides)


def written(run: Run, **settings: Any) -> tuple[TrainEngine, Path]:
    """An engine of the run's model after one update, and its checkpoint."""
    engine = make_engine(Path(run.config.model.path), **settings)
    draw = np.random.default_rng(0)
    sequences = Sequences(draw.integers(0, 40, 24).astype(np.int32), np.ones(24), np.array([8, 8, 8]))
    micro = sequences.micro_batch([0, 1, 2], world().device)
    engine.step(0, engine.accumulate([micro], lambda micro, logprobs, entropy: -logprobs.mean()))
    checkpoints = CheckpointManager(run, world(), 100)
    checkpoints.write(1, CheckpointPurpose(True, True), {"model": engine}, TrainingProgress(run, ME, world()))
    checkpoints.wait()
    return engine, run.checkpoints / "step_000001"


def loads(folder: Path, engine: TrainEngine) -> bool:
    """Whether transformers has the engine's weights from it, and misses none."""
    both: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    model, actual = both
    assert not actual["missing_keys"] and not actual["unexpected_keys"]
    expected = weights_of(engine)
    return all(torch.equal(tensor, expected[name]) for name, tensor in model.named_parameters())


@pytest.mark.shows("weights.save_sharded")
def test_save_sharded_splits_weights_into_files_of_at_most_that_size_with_an_index(tmp_path):
    whole = run_with(tmp_path / "whole")
    engine, folder = written(whole)
    assert [file.name for file in folder.glob("*.safetensors")] == ["model.safetensors"] and loads(folder, engine)
    assert not list(folder.glob("*.index.json"))

    engine, folder = written(run_with(tmp_path / "cut", "weights.save_sharded=true", "weights.max_shard_gb=16e-6"))
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 2 and files[0].name == f"model-00001-of-{len(files):05}.safetensors"
    assert all(sum(tensor.nbytes for tensor in load_file(file).values()) <= 16e3 for file in files)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == weights_of(engine).keys()
    assert loads(folder, engine) and loads(folder, make_engine(engine.folder, folder))


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_mixture_of_experts_checkpoints_have_published_names_and_can_be_resumed(tmp_path, name):
    source = model_folder(tmp_path, name)
    tensors = load_file(source / "model.safetensors")
    for key in tensors:
        if key.endswith("e_score_correction_bias"):
            tensors[key] = torch.arange(4.0)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    engine = make_engine(source, attn_impl="eager")
    folder = tmp_path / "written"
    write_hf_folder(folder, engine.model, source, weights_of(engine), torch.float32)

    actual = load_file(folder / "model.safetensors")
    assert "model.layers.1.mlp.experts.0.down_proj.weight" in actual and actual.keys() == tensors.keys()
    assert all(torch.equal(actual[key], tensors[key]) for key in tensors)
    again = weights_of(make_engine(source, folder, attn_impl="eager"))
    assert all(torch.equal(tensor, again[key]) for key, tensor in weights_of(engine).items())


def test_buffers_that_checkpoints_have_are_published_and_counted_as_they_are(tmp_path):
    engine = make_engine(model_folder(tmp_path, "deepseek_v3"), attn_impl="eager", dtype="bfloat16")
    weights = weights_of(engine)

    (bias,) = [tensor for name, tensor in weights.items() if name.endswith("e_score_correction_bias")]
    assert bias.dtype == torch.float32
    assert engine.num_weights == sum(tensor.numel() for tensor in weights.values())
    assert weight_bytes(engine) == sum(tensor.nbytes for tensor in weights.values())
    live = DoubleBuffer(AutoModelForCausalLM.from_pretrained(engine.folder, dtype=torch.bfloat16))
    sent = dict(HubNames(engine.model).rename(weights.items()))
    assert live.expected() == {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in sent.items()}


@pytest.mark.shows("weights.save_format")
@pytest.mark.parametrize("words", [(), ("weights.save_sharded=true", "weights.max_shard_gb=16e-6")])
def test_save_format_torch_holds_only_tensors_and_can_be_resumed(tmp_path, words):
    engine, folder = written(run_with(tmp_path, "weights.save_format=torch", *words))

    files = sorted(folder.glob("*.bin"))
    actual = [torch.load(file, weights_only=True) for file in files]
    expected = weights_of(engine)
    assert {name: True for each in actual for name in each} == dict.fromkeys(expected, True)
    assert all(torch.equal(tensor, expected[name]) for each in actual for name, tensor in each.items())
    assert len(files) == 1 or (folder / "pytorch_model.bin.index.json").is_file()
    assert not list(folder.glob("*.safetensors"))
    assert loads(folder, engine) and loads(folder, make_engine(engine.folder, folder))


def test_the_tokenizer_is_the_run_s_with_its_chat_template(tmp_path):
    """With any source of the tokenizer; other files of the model are unchanged."""
    run = run_with(tmp_path, "tokenizer_path=builtin:tiny-addition")
    source = Path(run.config.model.path)
    (source / "tokenizer.json").write_text("of another tokenizer")
    (source / "special_tokens_map.json").write_text("{}")
    (source / "generation_config.json").write_text('{"max_new_tokens": 77}')
    _, folder = written(run)

    ours, theirs = (
        AutoTokenizer.from_pretrained(each) for each in (folder, shipped("builtin:tiny-addition", tmp_path))
    )
    assert ours("12+34=")["input_ids"] == theirs("12+34=")["input_ids"]
    assert ours.chat_template == theirs.chat_template
    assert not (folder / "special_tokens_map.json").exists()
    assert json.loads((folder / "generation_config.json").read_text())["max_new_tokens"] == 77
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"


def test_exported_weights_have_the_users_file_mode(tmp_path):
    _, folder = written(run_with(tmp_path))

    assert (folder / "model.safetensors").stat().st_mode == (folder / "config.json").stat().st_mode


@pytest.mark.shows("weights.save_adapter_separately")
@pytest.mark.parametrize("save_format", ["safetensors", "torch"])
def test_save_adapter_separately_also_writes_an_adapter_for_peft(tmp_path, save_format):
    words = ("model.use_lora=true", f"weights.save_format={save_format}")
    run = run_with(tmp_path, *words, "weights.save_adapter_separately=true")
    engine, folder = written(run, use_lora=True, lora_rank=4, lr=0.05)

    base: Any = AutoModelForCausalLM.from_pretrained(engine.folder)
    merged: Any = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.arange(9)[None]
    with torch.no_grad():
        untouched = base(ids).logits
        adapted = PeftModel.from_pretrained(base, folder / "adapter")(ids).logits
        assert (adapted - untouched).abs().max() > 0.01
        torch.testing.assert_close(adapted, merged(ids).logits, atol=1e-4, rtol=1e-4)
    assert json.loads((folder / "adapter" / "adapter_config.json").read_text())["r"] == 4


def test_without_save_adapter_separately_only_merged_weights_are_written(tmp_path):
    engine, folder = written(run_with(tmp_path, "model.use_lora=true"), use_lora=True, lora_rank=4)

    assert not (folder / "adapter").exists() and loads(folder, make_engine(folder))
    assert weights_of(make_engine(folder)).keys() == weights_of(engine).keys()


def test_an_adapter_that_is_not_there_cannot_be_saved():
    with pytest.raises(ConfigError, match=r"^weights\.save_adapter_separately .*set model\.use_lora=true"):
        loaded("sft", "weights.save_adapter_separately=true")
    loaded("ppo", "weights.save_adapter_separately=true", "critic.use_lora=true")
