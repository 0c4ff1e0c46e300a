"""`/v1/completions`: format of the response, and refusals."""

from dataclasses import replace
from pathlib import Path

import pytest

from areal_like.config.sections.engines.keys import EMBEDDED as KEYS
from tests.support.embedded_servers import Client, over_http
from tests.support.tiny_models import VOCAB, write_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


def test_completions_have_openais_format(folder: Path) -> None:
    async def test(client: Client) -> None:
        request = {
            "model": "builtin:tiny",
            "prompt": ["12+34=", "5"],
            "max_tokens": 5,
            "temperature": 0.7,
            "n": 2,
            "seed": 11,
            "logprobs": 1,
            "return_token_ids": True,
        }
        status, response = await client.open("POST", "/v1/completions", request)
        assert (status, response["object"], response["model"]) == (200, "text_completion", "builtin:tiny")
        assert [choice["index"] for choice in response["choices"]] == [0, 1, 2, 3]
        assert [len(choice["prompt_token_ids"]) for choice in response["choices"]] == [6, 6, 1, 1]
        for choice in response["choices"]:
            assert choice["finish_reason"] in ("stop", "length")
            logprobs = choice["logprobs"]
            assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(choice["token_ids"]) <= 5
            assert "".join(logprobs["tokens"]).replace("<eos>", "").replace("<pad>", "") == choice["text"]
        usage = response["usage"]
        assert usage["prompt_tokens"] == 7
        assert usage["completion_tokens"] == sum(len(choice["token_ids"]) for choice in response["choices"])
        assert usage["total_tokens"] == 7 + usage["completion_tokens"]

        _, again = await client.open("POST", "/v1/completions", request)
        assert again["choices"] == response["choices"]
        ids = {
            "prompt": response["choices"][0]["prompt_token_ids"],
            "max_tokens": 5,
            "temperature": 0.7,
            "n": 2,
            "seed": 11,
        }
        _, by_ids = await client.open("POST", "/v1/completions", ids)
        assert [one["text"] for one in by_ids["choices"]] == [one["text"] for one in response["choices"][:2]]
        _, models = await client.open("GET", "/v1/models")
        assert [model["id"] for model in models["data"]] == ["builtin:tiny"]

    over_http(test, folder)


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"top_p": 1.5}, 400, "top_p: 1.5"),
        ({"stop": [""]}, 400, "stop: an empty text"),
        ({"stop": 5}, 400, "stop: 5 is not a list of texts"),
        ({"logprobs": 6}, 400, "logprobs: 6 is not a number from 0 to 5"),
        ({"prompt_logprobs": -1}, 400, "prompt_logprobs: -1 "),
        ({"min_tokens": -1}, 400, "min_tokens: -1 "),
        ({"presence_penalty": 0.5}, 400, "presence_penalty: 0.5 "),
        ({"logit_bias": {"5": 1}}, 400, "logit_bias: "),
        ({"echo": "yes"}, 400, "echo: 'yes' is neither true nor false"),
        ({"stream": True}, 400, "stream: "),
        ({"prompt": "Ä"}, 400, "prompt: the tokenizer cannot read"),
        ({"prompt": None}, 400, "prompt: give a text"),
        ({"prompt": [VOCAB]}, 400, "prompt: 64 is not a token"),
        ({"prompt": "1" * 64}, 400, "embedded.context_length: "),
        ({"model": "gpt-4"}, 404, "model: 'gpt-4' is not served here"),
        ({"seed": "x"}, 400, "seed: "),
        ({"max_tokens": 0}, 400, "max_tokens: 0 "),
        ({"temperature": -1}, 400, "temperature: -1 "),
        ({"max_tokens": "many"}, 400, "max_tokens: 'many' "),
        ({"n": 0}, 400, "n: 0 "),
        ({"n": 129}, 400, "n: 129 is not a whole number from 1 to 128"),
    ],
)
def test_an_unsupported_completion_is_refused_with_the_field(
    folder: Path, changes: dict[str, object], status: int, message: str
) -> None:
    async def test(client: Client) -> None:
        actual, response = await client.open("POST", "/v1/completions", {"prompt": "1+1=", **changes})
        assert (actual, response["error"]["message"][: len(message)]) == (status, message)
        assert response["error"]["type"] == "invalid_request_error"

    over_http(test, folder)


def test_an_engine_on_this_core_reports_its_own_name_and_keys(folder: Path) -> None:
    keys = replace(KEYS, name="other", length_key="other.longest", cache_tokens_key="other.cache")

    async def test(client: Client) -> None:
        assert (await client.open("GET", "/health"))[1]["engine"] == "other"
        long, limits = [5] * 64, {"max_tokens": 4}
        for path, body in (
            ("/v1/completions", {"prompt": long, **limits}),
            ("/inference/v1/generate", {"token_ids": long, "sampling_params": limits}),
        ):
            status, answer = await client.open("POST", path, body)
            assert status == 400 and "other.longest: the prompt has 64 tokens" in str(answer)
        client.engine.cache.limit = 16
        status, answer = await client.open("POST", "/v1/completions", {"prompt": [5] * 20, **limits})
        assert status == 400 and "other.cache: a prompt of 20 tokens" in str(answer)

    over_http(test, folder, keys)


def test_without_a_tokenizer_a_completion_is_refused_before_it_is_generated() -> None:
    async def test(client: Client) -> None:
        status, response = await client.open("POST", "/v1/completions", {"prompt": [5, 9]})
        assert (status, client.engine.counts.steps) == (400, 0)
        assert "tokenizer.json does not exist" in response["error"]["message"]

    over_http(test)
