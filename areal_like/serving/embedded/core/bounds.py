"""Where an answer ends: the tokens that the model ends one with, and how long it may get."""

from collections.abc import Sequence

from transformers import PreTrainedModel

from areal_like.serving.requests import BadRequest, GroupRequest, max_answer_tokens


def answer_limit(group: GroupRequest, context_length: int, cache_tokens: int) -> int:
    """Most tokens of one answer. A cache that is too small for it is refused, since nobody asked for a shorter one."""
    length = len(group.prompt)
    limit = max_answer_tokens(group.sampling, length, context_length, "embedded.context_length")
    if length + limit > cache_tokens:
        raise BadRequest(
            f"embedded.kv_cache_tokens: a prompt of {length} tokens and an answer of up to {limit} do not fit into "
            f"{cache_tokens}; lower gconfig.max_new_tokens or raise embedded.kv_cache_tokens"
        )
    return limit


def end_token_ids(group: GroupRequest, of_the_model: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Tokens that end an answer."""
    ends = tuple(sorted({*group.sampling.stop_token_ids, *of_the_model}))
    if group.sampling.min_new_tokens and len(ends) >= vocab_size:
        raise BadRequest("gconfig.stop_token_ids: all tokens end an answer, and gconfig.min_new_tokens wants some")
    return ends


def model_end_tokens(model: PreTrainedModel) -> list[int]:
    """Of generation_config.json where it names them, else of config.json."""
    for source in (model.generation_config, model.config.get_text_config()):
        found = getattr(source, "eos_token_id", None)
        if found is not None:
            return [found] if isinstance(found, int) else list(found)
    return []
