"""Size of a model from its config.json: parameters and KV cache, without loading it."""

from typing import Any, NamedTuple

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
DTYPE_ALIASES = {"half": "float16", "float": "float32", "fp16": "float16", "fp32": "float32", "bf16": "bfloat16"}
"""Names that engines take for them."""


class ModelShape(NamedTuple):
    """The dimensions that memory depends on."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    attention: int
    """parameters of one layer's attention"""
    mlp: int
    """parameters of one layer's feed-forward part (of the largest kind of layer)"""
    mlp_total: int
    """the same over all layers"""
    inner: int
    """width of the feed-forward part that a token passes through: with experts, of those it is sent to"""
    norms_heads: bool
    """whether queries and keys are normalized head by head"""
    kv_per_token: int
    """numbers that the KV cache holds per token, all layers together"""
    max_positions: int | None

    def parameters(self, critic: bool = False) -> int:
        """All parameters; a critic's head has one output per token, a policy's one per vocabulary entry."""
        embedding = self.vocab * self.hidden
        head = self.hidden if critic else (0 if self.tied else embedding)
        norms = (2 * self.layers + 1) * self.hidden
        return embedding + head + self.layers * self.attention + self.mlp_total + norms

    @property
    def embedding(self) -> int:
        return self.vocab * self.hidden

    @property
    def layer(self) -> int:
        """Parameters of the largest layer, which FSDP gathers as a unit."""
        return self.attention + self.mlp + 2 * self.hidden

    def outside_layers(self, critic: bool = False) -> int:
        """Embedding, head and last norm: FSDP's root unit, which is gathered during the whole pass."""
        head = self.hidden if critic else 0 if self.tied else self.embedding
        return self.embedding + head + self.hidden


def shape_of(config: dict[str, Any] | None, num_layers: int | None = None) -> ModelShape | None:
    """The dimensions of a decoder of the Llama family's form; None for other models."""
    if config is None:
        return None
    text = config.get("text_config")
    if isinstance(text, dict):
        config = {"tie_word_embeddings": config.get("tie_word_embeddings", True), **text}
    try:
        shape = _shape(config, num_layers)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    counts = [*shape[:6], shape.inner, shape.kv_per_token]
    counts += [] if shape.max_positions is None else [shape.max_positions]
    return shape if all(type(count) is int and count > 0 for count in counts) else None


def _shape(config: dict[str, Any], num_layers: int | None) -> ModelShape:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    layers = min(config["num_hidden_layers"], num_layers or config["num_hidden_layers"])
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    kind = str(config.get("model_type", ""))
    dense, sparse = _dense_mlp(config), _sparse_mlp(config)
    num_sparse = _sparse_layers(config, layers) if sparse else 0
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", kind in TIED_BY_DEFAULT)),
        attention=_attention(config, kind, hidden, heads * head_dim, kv_heads * head_dim, head_dim),
        mlp=max(sparse if num_sparse else 0, dense if num_sparse < layers else 0),
        mlp_total=num_sparse * sparse + (layers - num_sparse) * dense,
        inner=_inner(config, bool(num_sparse)),
        norms_heads=kind.startswith(NORM_HEADS),
        kv_per_token=_kv_per_token(config, layers, kv_heads, head_dim),
        max_positions=config.get("max_position_embeddings"),
    )


NORM_HEADS = ("qwen3", "gemma3", "olmo2")
TIED_BY_DEFAULT = ("gemma", "gemma2", "gemma3_text", "gpt2")


def _attention(config: dict[str, Any], kind: str, hidden: int, query: int, kv: int, head_dim: int) -> int:
    if "kv_lora_rank" in config:
        return _latent_attention(config, hidden)
    weights = hidden * query + 2 * hidden * kv + query * hidden
    if kind.startswith("qwen2") or config.get("attention_bias"):
        weights += query + 2 * kv
    if kind.startswith(NORM_HEADS):
        weights += 2 * head_dim
    return weights


def _latent_attention(config: dict[str, Any], hidden: int) -> int:
    """DeepSeek's multi-head latent attention."""
    heads, rank, rope = config["num_attention_heads"], config["kv_lora_rank"], config["qk_rope_head_dim"]
    nope, value, query_rank = config["qk_nope_head_dim"], config["v_head_dim"], config.get("q_lora_rank")
    query = heads * (nope + rope)
    queries = hidden * query_rank + query_rank + query_rank * query if query_rank else hidden * query
    return int(queries + hidden * (rank + rope) + rank + rank * heads * (nope + value) + heads * value * hidden)


def _dense_mlp(config: dict[str, Any]) -> int:
    return 3 * int(config["hidden_size"]) * int(config["intermediate_size"])


def _sparse_mlp(config: dict[str, Any]) -> int:
    """One mixture-of-experts layer: router, experts, shared experts."""
    experts = config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts")
    if not experts:
        return 0
    hidden = config["hidden_size"]
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    shared = config.get("shared_expert_intermediate_size") or 0
    gate = hidden if shared else 0
    shared += (config.get("n_shared_experts") or 0) * width
    return int(hidden * experts + 3 * hidden * width * experts + 3 * hidden * shared + gate)


def _inner(config: dict[str, Any], is_sparse: bool) -> int:
    dense = int(config["intermediate_size"])
    if not is_sparse:
        return dense
    width = int(config.get("moe_intermediate_size") or dense)
    chosen = int(config.get("num_experts_per_tok") or config.get("top_k") or 1)
    shared = int(config.get("shared_expert_intermediate_size") or 0) + int(config.get("n_shared_experts") or 0) * width
    return chosen * width + shared


def _sparse_layers(config: dict[str, Any], layers: int) -> int:
    """How many of the layers have experts."""
    step = config.get("decoder_sparse_step") or 1
    dense = set(config.get("mlp_only_layers") or ()) | set(range(config.get("first_k_dense_replace") or 0))
    return sum(1 for layer in range(layers) if layer not in dense and (layer + 1) % step == 0)


def _kv_per_token(config: dict[str, Any], layers: int, kv_heads: int, head_dim: int) -> int:
    kinds = config.get("layer_types")
    if isinstance(kinds, list):  # layers of linear attention keep a state of fixed size instead
        layers = sum(1 for kind in kinds[:layers] if "linear" not in str(kind))
    if "kv_lora_rank" in config:
        return layers * int(config["kv_lora_rank"] + config["qk_rope_head_dim"])
    return 2 * layers * kv_heads * head_dim
