"""How long a sequence may be: by what is sampled, by the server, and by the model."""

from areal_like.config.experiment import GRPOConfig


def server_limit(config: GRPOConfig, backend: str) -> tuple[str, int | None]:
    """The key by which a server limits prompt and answer together, and its value (None: what the model can)."""
    limits = {
        "embedded": ("embedded.context_length", config.embedded.context_length),
        "vllm": ("vllm.max_model_len", config.vllm.max_model_len),
        "sglang": ("sglang.context_length", config.sglang.context_length),
    }
    return limits[backend]


def longest_sample(config: GRPOConfig) -> int:
    """Tokens of prompt and answer, as far as the sampling and the data limit them."""
    prompt = config.train_dataset.max_length
    if prompt is None:
        return config.gconfig.max_tokens
    return min(config.gconfig.max_tokens, prompt + config.gconfig.max_new_tokens)
