"""Completions as clients of OpenAI's interface ask for them. What such a client sets and the engine does not do is
refused, not ignored."""

import itertools
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from areal_like.process.errors import Refused
from areal_like.process.http import answer, read_json
from areal_like.process.seeds import derive_seed
from areal_like.serving.embedded.request import BadRequest, Finished, Group, Sample, parse_group
from areal_like.serving.embedded.streams import Streams

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_TOKENS = 16
"""What OpenAI's interface takes where a request says nothing."""
MUST_BE_NEUTRAL = {
    "stream": (None, False),
    "echo": (None, False),
    "best_of": (None, 1),
    "suffix": (None, ""),
    "logit_bias": (None, {}),
    "presence_penalty": (None, 0),
    "top_p": (None, 1),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_tokens": (None, 0),
    "stop": (None, [], ""),
    "logprobs": (None, False, True, 0, 1),
    "ignore_eos": (None, False),
}


class Completions:
    """`folder` holds the tokenizer, which only text needs."""

    def __init__(self, streams: Streams, model: str, folder: Path, seed: int) -> None:
        self._streams, self._model, self._folder, self._seed = streams, model, folder, seed
        self._engine = streams.driver.engine
        self._numbers = itertools.count()
        self._began = int(time.time())

    async def models(self, request: web.Request) -> web.Response:
        model = {
            "id": self._model,
            "object": "model",
            "created": self._began,
            "owned_by": "areal-like",
            "max_model_len": self._engine.context_length,
        }
        return answer({"object": "list", "data": [model]})

    async def completions(self, request: web.Request) -> web.Response:
        said = await read_json(request)
        if not isinstance(said, dict):
            raise Refused(400, "the body is an object with model and prompt")
        assert self._tokenizer  # where there is none, that is told before anything is generated
        number = next(self._numbers)
        try:
            groups = self._groups(said, number)
        except BadRequest as bad:
            raise Refused(400, _as_the_client_named_it(str(bad))) from bad
        done: dict[str, Finished] = {}
        try:
            async for finished in self._streams.run(request, groups):
                done.update((one.id, one) for one in finished)
        except ConnectionError as gone:
            raise Refused(503, str(gone)) from gone
        for one in done.values():
            if one.error is not None:
                raise Refused(400 if one.ticket < 0 else 503, one.error)
        return answer(self._content(said, number, groups, done))

    def _groups(self, said: dict[str, Any], number: int) -> list[Group]:
        for key, neutral in MUST_BE_NEUTRAL.items():
            if said.get(key) not in neutral:
                raise BadRequest(f"{key}: {said[key]!r} is something that this server does not do; leave it out")
        if said.get("model", self._model) != self._model:
            raise Refused(404, f"model: {said['model']!r} is not served here; this is {self._model!r}")
        if said.get("seed") is None:
            seed = derive_seed(self._seed, "completions", number)
        elif type(said["seed"]) is int:
            seed = said["seed"] % (1 << 64)
        else:
            raise BadRequest(f"seed: {said['seed']!r} is not a whole number")
        sampling = {
            "temperature": 1.0 if said.get("temperature") is None else said["temperature"],
            "max_new_tokens": MAX_TOKENS if said.get("max_tokens") is None else said["max_tokens"],
            "stop_token_ids": said.get("stop_token_ids") or [],
        }
        groups = []
        for place, prompt in enumerate(self._prompts(said.get("prompt"))):
            one_seed = derive_seed(seed, "prompt", place) if place else seed
            asked = {
                "id": str(place),
                "prompt": prompt,
                "n": 1 if said.get("n") is None else said["n"],
                "seed": one_seed,
                "sampling": sampling,
            }
            groups.append(parse_group(asked, self._engine.vocab_size))
        return groups

    def _prompts(self, said: Any) -> list[list[int]]:
        """A text, several texts, token ids, or several lists of them."""
        if isinstance(said, str):
            return [self._encode(said)]
        if isinstance(said, list) and said and all(isinstance(one, str) for one in said):
            return [self._encode(one) for one in said]
        if isinstance(said, list) and said and all(isinstance(one, list) for one in said):
            return said
        if isinstance(said, list) and said:
            return [said]
        raise BadRequest("prompt: give a text, a list of texts, a list of token ids, or a list of such lists")

    def _encode(self, text: str) -> list[int]:
        try:
            ids: list[int] = self._tokenizer.encode(text).ids
        except Exception as fault:  # the library raises nothing narrower
            raise BadRequest(f"prompt: the tokenizer cannot read {text!r}: {fault}") from fault
        return ids

    @cached_property
    def _tokenizer(self) -> "Tokenizer":
        from tokenizers import Tokenizer

        file = self._folder / "tokenizer.json"
        if not file.is_file():
            raise Refused(400, f"{file} is not there, so this server cannot read or write text")
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_truncation()  # a file may ask for both, and a prompt is what was said
        tokenizer.no_padding()
        return tokenizer

    def _content(
        self, said: dict[str, Any], number: int, groups: list[Group], done: dict[str, Finished]
    ) -> dict[str, Any]:
        choices: list[dict[str, Any]] = []
        for group in groups:
            for sample in done[group.id].samples:
                choices.append(self._choice(len(choices), group, sample, said))
        prompt_tokens = sum(len(group.prompt) for group in groups)
        answer_tokens = sum(len(sample.token_ids) for one in done.values() for sample in one.samples)
        return {
            "id": f"cmpl-{number}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._model,
            "choices": choices,
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": answer_tokens,
                "total_tokens": prompt_tokens + answer_tokens,
            },
        }

    def _choice(self, index: int, group: Group, sample: Sample, said: dict[str, Any]) -> dict[str, Any]:
        """Its text is without tokens that are no text, such as the one that ends it."""
        choice: dict[str, Any] = {
            "index": index,
            "text": self._tokenizer.decode(sample.token_ids),
            "finish_reason": sample.finish,
            "logprobs": None,
        }
        if said.get("logprobs") not in (None, False):
            texts = [self._tokenizer.decode([token], skip_special_tokens=False) for token in sample.token_ids]
            starts = itertools.accumulate((len(text) for text in texts[:-1]), initial=0)
            choice["logprobs"] = {
                "tokens": texts,
                "token_logprobs": sample.logprobs,
                "top_logprobs": None,
                "text_offset": list(starts),
            }
        if said.get("return_token_ids"):
            choice |= {"token_ids": sample.token_ids, "prompt_token_ids": list(group.prompt)}
        return choice


def _as_the_client_named_it(complaint: str) -> str:
    """Who speaks this interface knows no `gconfig`."""
    return complaint.removeprefix("gconfig.").replace("max_new_tokens", "max_tokens", 1)
