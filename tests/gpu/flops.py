"""Floating-point operations that a training step needs, and the share of a device's peak that they are.

Counted is what the result depends on: matrix products of all input tokens, attention to the tokens before each (half of
the square), and the head for the tokens in the loss alone. The backward pass is twice the forward pass. What is
computed a second time to save memory is not counted.
"""

from collections.abc import Sequence

from transformers import Qwen3Config

PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H800 PCIe": 756e12,
    "H800": 989e12,
    "GH200": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10G": 70e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "B200": 2250e12,
}
"""Words in a device's name -> its maker's peak in bfloat16, accumulated in float32, without sparsity. The first that
fits counts."""


def training_flops(shape: Qwen3Config, input_lengths: Sequence[int], loss_tokens: int) -> float:
    """Of one forward and backward pass over sequences with so many input tokens each; `loss_tokens` are those that the
    head is computed for."""
    tokens = sum(input_lengths)
    matrices = 2.0 * shape.num_hidden_layers * layer_parameters(shape) * tokens
    head = 2.0 * shape.vocab_size * shape.hidden_size * loss_tokens
    return float(3.0 * (matrices + attention_flops(shape, input_lengths) + head))


def attention_flops(shape: Qwen3Config, input_lengths: Sequence[int]) -> float:
    """Of a forward pass: two products, of queries with keys and of weights with values, where a token attends to itself
    and those before it."""
    pairs = sum(length * (length + 1) / 2 for length in input_lengths)
    return float(4.0 * shape.num_hidden_layers * shape.num_attention_heads * shape.head_dim * pairs)


def layer_parameters(shape: Qwen3Config) -> int:
    """Parameters of one layer's matrices."""
    hidden, heads = shape.hidden_size, shape.num_attention_heads
    kv_heads = shape.num_key_value_heads or heads
    return int(2 * hidden * shape.head_dim * (heads + kv_heads) + 3 * hidden * shape.intermediate_size)


def peak_flops(name: str) -> float | None:
    """By the name of a device; None for one that is not listed."""
    words = name.replace("-", " ").split()
    return next((peak for part, peak in PEAKS.items() if all(word in words for word in part.split())), None)
