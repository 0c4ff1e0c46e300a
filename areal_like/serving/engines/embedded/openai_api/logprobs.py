"""Log-probabilities in the formats of OpenAI's and vLLM's interfaces."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from areal_like.serving.engines.embedded.core.tokenizer import LazyTokenizer
from areal_like.serving.requests import GeneratedSample, SampleWithTopLogprobs

TokenLogprob = tuple[int, float | None, dict[int, float]]
"""A token, its log-probability (None for the first token of a prompt), and the most likely tokens in its place."""


def sample_logprobs(sample: GeneratedSample) -> list[TokenLogprob]:
    top_logprobs = sample.top_logprobs if isinstance(sample, SampleWithTopLogprobs) else [{}] * len(sample.token_ids)
    return list(zip(sample.token_ids, sample.logprobs, top_logprobs, strict=True))


class TokenNames:
    """Names of tokens in responses: their text, or `token_id:7` if the client asks for ids."""

    def __init__(self, tokenizer: LazyTokenizer, by_id: bool) -> None:
        self._tokenizer, self._by_id = tokenizer, by_id

    def __call__(self, token: int) -> str:
        return f"token_id:{token}" if self._by_id else self.text(token)

    def text(self, token: int) -> str:
        return self._tokenizer.decode([token], skip_special=False)


def to_completion_logprobs(logprobs: Sequence[TokenLogprob], names: TokenNames) -> dict[str, Any]:
    """`top_logprobs` includes the token itself, as in vLLM."""
    texts = [names.text(token) for token, _, _ in logprobs]
    tops = [
        None if logprob is None else {names(one): value for one, value in {**others, token: logprob}.items()}
        for token, logprob, others in logprobs
    ]
    return {
        "tokens": [names(token) for token, _, _ in logprobs],
        "token_logprobs": [logprob for _, logprob, _ in logprobs],
        "top_logprobs": tops,
        "text_offset": list(itertools.accumulate((len(text) for text in texts[:-1]), initial=0)) if texts else [],
    }


def to_generate_logprobs(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """As in vLLM's token route: ids only."""
    content = []
    for token, logprob, others in logprobs:
        top = [_one(other, value, rank) for rank, (other, value) in enumerate(others.items(), 1)]
        content.append({**_one(token, logprob, _rank(token, others)), "top_logprobs": top})
    return {"content": content}


def to_prompt_logprobs(logprobs: Sequence[TokenLogprob], names: TokenNames | None) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: a map of ids for each token, None for the first."""
    entries: list[dict[str, Any] | None] = []
    for token, logprob, others in logprobs:
        if logprob is None:
            entries.append(None)
            continue
        entries.append(
            {
                str(one): {
                    "logprob": value,
                    "rank": _rank(one, others),
                    "decoded_token": names.text(one) if names else None,
                }
                for one, value in {token: logprob, **others}.items()
            }
        )
    return entries


def _one(token: int, logprob: float | None, rank: int | None) -> dict[str, Any]:
    return {"token_id": token, "logprob": logprob, "rank": rank}


def _rank(token: int, others: Mapping[int, float]) -> int | None:
    """None unless it is among the most likely."""
    return list(others).index(token) + 1 if token in others else None
