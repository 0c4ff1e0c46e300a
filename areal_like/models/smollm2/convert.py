"""Converts a GGUF file of a Llama with a byte-level tokenizer to a Hugging Face folder in bfloat16."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from areal_like.models.smollm2.gguf import GGUF

MODEL_TENSORS = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL = 3
"""Token type of special tokens."""


def model_config(source: GGUF) -> dict[str, Any]:
    """The content of `config.json`."""

    def value(name: str) -> Any:
        return source.metadata[f"llama.{name}"]

    ids = {name: source.metadata[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos", "padding")}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(source.metadata["tokenizer.ggml.tokens"]),
        "hidden_size": value("embedding_length"),
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": value("attention.head_count"),
        "num_key_value_heads": value("attention.head_count_kv"),
        "head_dim": value("rope.dimension_count"),
        "hidden_act": "silu",
        "max_position_embeddings": value("context_length"),
        "initializer_range": 0.02,
        "rms_norm_eps": float(f"{value('attention.layer_norm_rms_epsilon'):.3g}"),
        "rope_parameters": {"rope_type": "default", "rope_theta": value("rope.freq_base")},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "use_cache": True,
        "bos_token_id": ids["bos"],
        "eos_token_id": ids["eos"],
        "pad_token_id": ids["padding"],
        "dtype": "bfloat16",
    }


def write_weights(source: GGUF, file: Path) -> None:
    """Writes safetensors directly: the library needs torch for bfloat16."""
    tensors = {name: _bfloat16(tensor) for name, tensor in sorted(_hf_tensors(source))}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    encoded_header = json.dumps(header, separators=(",", ":")).encode()
    encoded_header += b" " * (-len(encoded_header) % 8)
    with file.open("wb") as out:
        out.write(len(encoded_header).to_bytes(8, "little") + encoded_header)
        for tensor in tensors.values():
            out.write(tensor.tobytes())


def write_tokenizer(source: GGUF, folder: Path) -> None:
    """`tokenizer.json` and `tokenizer_config.json`, with the chat template."""
    entries = {name: source.metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "merges", "token_type")}
    merges = [(left, right) for left, right in (merge.split(" ") for merge in entries["merges"])]
    vocabulary = {token: number for number, token in enumerate(entries["tokens"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokens_and_types = zip(entries["tokens"], entries["token_type"], strict=True)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True) for token, kind in tokens_and_types if kind == CONTROL]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{key: entries["tokens"][source.metadata[f"tokenizer.ggml.{name}_token_id"]] for key, name in names.items()},
        "chat_template": source.metadata["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": source.metadata["llama.context_length"],
        "padding_side": "left",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _hf_tensors(source: GGUF) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """With the names of transformers; a tied head is left out."""
    heads = {
        "attn_q": source.metadata["llama.attention.head_count"],
        "attn_k": source.metadata["llama.attention.head_count_kv"],
    }
    for name, tensor in source.tensors():
        if name in MODEL_TENSORS:
            yield MODEL_TENSORS[name], tensor
            continue
        _, layer, part, kind = name.split(".")
        yield (
            f"model.layers.{layer}.{LAYER_TENSORS[part]}.{kind}",
            _hf_rotary_order(tensor, heads[part]) if part in heads else tensor,
        )


def _hf_rotary_order(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """GGUF interleaves the two halves that rotary embeddings rotate; transformers concatenates them."""
    half = len(weight) // heads // 2
    return weight.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def _bfloat16(tensor: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper 16 bits, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(tensor, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
