"""Routes of vLLM's interface: formats, and correct values."""

import asyncio
import math
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from areal_like import __version__
from tests.serving.engines.embedded.test_engine import expected_logprobs
from tests.support.embedded_servers import Client, group, over_http, published, until
from tests.support.tiny_models import EOS_ID, tiny_qwen3, write_tiny_model

MODEL = "builtin:tiny"
HANGS_S = 20.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


async def completion(client: Client, **request: object) -> list[dict[str, Any]]:
    status, response = await client.open("POST", "/v1/completions", {"prompt": "12+34=", "seed": 4, **request})
    assert status == 200, response
    choices: list[dict[str, Any]] = response["choices"]
    return choices


def test_completions_use_the_requested_sampling(folder: Path) -> None:
    async def test(client: Client) -> None:
        (wide,) = await completion(client, max_tokens=8, return_token_ids=True)
        (narrow,) = await completion(client, max_tokens=8, return_token_ids=True, top_k=1)
        (greedy,) = await completion(client, max_tokens=8, return_token_ids=True, temperature=0)
        assert narrow["token_ids"] == greedy["token_ids"] != wide["token_ids"]
        for how in ({"top_p": 1e-6}, {"min_p": 1.0}):
            (choice,) = await completion(client, max_tokens=8, return_token_ids=True, **how)
            assert choice["token_ids"] == greedy["token_ids"]
        never_twice = {"max_tokens": 40, "temperature": 0, "repetition_penalty": 1e5, "return_token_ids": True}
        (varied,) = await completion(client, **never_twice)
        assert len(set(varied["token_ids"])) == len(varied["token_ids"])
        ends = {"max_tokens": 30, "stop_token_ids": list(range(2, 60)), "return_token_ids": True}
        (held,) = await completion(client, **ends, min_tokens=5)
        assert len((await completion(client, **ends))[0]["token_ids"]) == 1 and len(held["token_ids"]) > 5
        assert held["stop_reason"] in (None, *held["token_ids"][-1:])

    over_http(test, folder)


def test_a_stop_text_ends_a_completion_and_is_named(folder: Path) -> None:
    async def test(client: Client) -> None:
        (whole,) = await completion(client, max_tokens=20)
        text = whole["text"][2:4]
        before = whole["text"][: whole["text"].index(text)]
        (cut,) = await completion(client, max_tokens=20, stop=text, return_token_ids=True)
        assert (cut["text"], cut["finish_reason"], cut["stop_reason"]) == (before, "stop", text)
        (kept,) = await completion(client, max_tokens=20, stop=[text], include_stop_str_in_output=True)
        assert kept["text"] == before + text
        _, tokens = await client.open("POST", "/detokenize", {"tokens": cut["token_ids"]})
        assert tokens["prompt"].endswith(text)

    over_http(test, folder)


def test_top_logprobs_include_the_sampled_token(folder: Path) -> None:
    async def test(client: Client) -> None:
        request = {"max_tokens": 6, "logprobs": 3, "temperature": 0.8, "return_token_ids": True}
        (choice,) = await completion(client, **request, return_tokens_as_token_ids=True)
        logprobs = choice["logprobs"]
        (prompt,) = await completion(client, max_tokens=1, return_token_ids=True)
        ids = [*prompt["prompt_token_ids"], *choice["token_ids"]]
        with torch.no_grad():
            logits = tiny_qwen3()(torch.tensor([ids])).logits[0, len(prompt["prompt_token_ids"]) - 1 : -1] / 0.8
        for row, token, logprob, top in zip(
            torch.log_softmax(logits, -1),
            choice["token_ids"],
            logprobs["token_logprobs"],
            logprobs["top_logprobs"],
            strict=True,
        ):
            best = {f"token_id:{int(one)}" for one in row.topk(3).indices}
            assert set(top) == best | {f"token_id:{token}"}
            for name, value in top.items():
                assert value == pytest.approx(float(row[int(name.removeprefix("token_id:"))]), abs=1e-5)
            assert top[f"token_id:{token}"] == logprob
        assert logprobs["tokens"] == [f"token_id:{token}" for token in choice["token_ids"]]

    over_http(test, folder)


def test_a_prompt_can_be_echoed_and_scored_without_an_answer(folder: Path) -> None:
    async def test(client: Client) -> None:
        request = {"max_tokens": 0, "echo": True, "logprobs": 1, "prompt_logprobs": 2, "return_token_ids": True}
        (choice,) = await completion(client, **request)
        ids = choice["prompt_token_ids"]
        assert (choice["text"], choice["token_ids"], client.engine.counts.steps) == ("12+34=", [], 0)
        expected = expected_logprobs(tiny_qwen3(), ids[:1], ids[1:]).tolist()
        assert choice["logprobs"]["token_logprobs"][0] is None
        assert choice["logprobs"]["token_logprobs"][1:] == pytest.approx(expected, abs=1e-5)
        assert choice["logprobs"]["text_offset"] == list(range(6))
        first, *others = choice["prompt_logprobs"]
        assert first is None
        for token, one, value in zip(ids[1:], others, expected, strict=True):
            assert one[str(token)]["logprob"] == pytest.approx(value, abs=1e-5)
            assert 2 <= len(one) <= 3 and 1 in {entry["rank"] for entry in one.values()}
        (both,) = await completion(client, max_tokens=4, echo=True)
        (answer,) = await completion(client, max_tokens=4)
        assert both["text"] == "12+34=" + answer["text"]

    over_http(test, folder)


def test_tokens_in_and_tokens_out(tmp_path: Path) -> None:
    """Without a tokenizer."""

    async def test(client: Client) -> None:
        await client.call("POST", "/control/update_weights", published(tmp_path, 3, tiny_qwen3()))
        sampling = {"max_tokens": 6, "temperature": 0.9, "seed": 3, "n": 2, "logprobs": 1, "prompt_logprobs": 0}
        body = {"request_id": "r", "token_ids": [5, 9, 13, 20], "sampling_params": sampling, "return_token_ids": True}
        status, response = await client.open("POST", "/inference/v1/generate", body)
        assert (status, response["request_id"], response["output_mode"]) == (200, "r", "tokens")
        assert response["prompt_token_ids"] == [5, 9, 13, 20] and len(response["prompt_logprobs"]) == 4
        ours = (await client.generate(group("r", temperature=0.9)))["r"]["samples"]
        for choice, sample in zip(response["choices"], ours, strict=True):
            assert choice["token_ids"] == sample["token_ids"]
            assert choice["finish_reason"] == sample["finish"] and choice["stop_reason"] is None
            content = choice["logprobs"]["content"]
            assert [one["token_id"] for one in content] == sample["token_ids"]
            assert [one["logprob"] for one in content] == pytest.approx(sample["logprobs"], abs=1e-6)
            assert all(len(one["top_logprobs"]) == 1 for one in content)
            length = len(sample["token_ids"])
            assert choice["weight_versions"] == [{"version": "3", "start": 0, "end": length}]
        refused = [
            ({**body, "token_ids": []}, "prompt: give at least one token id"),
            ({**body, "stream": True}, "stream: True"),
            ({**body, "sampling_params": {"stop": ["x"]}}, "tokenizer.json does not exist"),
            ({**body, "sampling_params": {"max_tokens": 0}}, "max_tokens: 0"),
            ({"token_ids": [5]}, "the body is an object with token_ids and sampling_params"),
        ]
        for request, message in refused:
            status, response = await client.open("POST", "/inference/v1/generate", request)
            assert status == 400 and message in response["error"]["message"]
        whole = {"token_ids": [5], "sampling_params": {"min_tokens": 63}}
        _, response = await client.open("POST", "/inference/v1/generate", whole)
        assert len(response["choices"][0]["token_ids"]) == 63, "up to the end of the context"

    over_http(test)


def test_tokenize_and_detokenize(folder: Path) -> None:
    async def test(client: Client) -> None:
        status, response = await client.open("POST", "/tokenize", {"prompt": "12+34=", "return_token_strs": True})
        assert (status, response["count"], response["max_model_len"]) == (200, 6, 64)
        assert response["token_strs"] == list("12+34=")
        assert (await client.open("POST", "/detokenize", {"tokens": response["tokens"]}))[1] == {"prompt": "12+34="}
        for path, body in (
            ("/tokenize", {"messages": []}),
            ("/tokenize", {"prompt": "Ä"}),
            ("/detokenize", {"tokens": ["1"]}),
            ("/detokenize", {"tokens": [-1]}),
        ):
            assert (await client.open("POST", path, body))[0] == 400, (path, body)

    over_http(test, folder)


def test_models_version_and_metrics(folder: Path, tmp_path: Path) -> None:
    async def metrics(client: Client) -> dict[str, float]:
        async with client.session.get(f"http://{client.address}/metrics") as response:
            assert response.content_type == "text/plain"
            lines = (await response.text()).splitlines()
        types = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE")}
        values = {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}
        assert types.keys() == values.keys()
        assert all((kind == "counter") == name.endswith("_total") for name, kind in types.items())
        return values

    async def test(client: Client) -> None:
        before = await metrics(client)
        assert before["areal_like_weights_version"] == -1 and before["areal_like_samples_total"] == 0
        await client.call("POST", "/control/update_weights", published(tmp_path, 4, tiny_qwen3()))
        lines = await client.generate(group("g", n=3))
        after = await metrics(client)
        tokens = sum(len(sample["token_ids"]) for sample in lines["g"]["samples"])
        assert EOS_ID not in lines["g"]["samples"][0]["token_ids"][:-1]
        assert after["areal_like_generated_tokens_total"] == tokens
        assert (after["areal_like_weights_version"], after["areal_like_samples_total"]) == (4, 3)
        assert after["areal_like_prompt_tokens_total"] == 4 and after["areal_like_busy_seconds_total"] > 0
        await client.call("POST", "/control/pause")
        assert (await metrics(client))["areal_like_paused"] == 1
        assert (await client.open("GET", "/version"))[1] == {"version": __version__}
        _, models = await client.open("GET", "/v1/models")
        assert [(one["id"], one["max_model_len"]) for one in models["data"]] == [(MODEL, 64)]
        assert math.isfinite(models["data"][0]["created"])

    over_http(test, folder)


@pytest.mark.parametrize(
    ("path", "body", "call"),
    [
        ("/tokenize", {"prompt": "12+34="}, "encode"),
        ("/v1/completions", {"prompt": "12+34=", "max_tokens": 2}, "encode"),
        ("/detokenize", {"tokens": [5, 9]}, "decode"),
    ],
)
def test_other_requests_are_answered_while_a_tokenizer_is_busy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, object], call: str
) -> None:
    is_busy, released = threading.Event(), threading.Event()

    async def test(client: Client) -> None:
        whole = getattr(client.engine.tokenizer, call)

        def blocked(*given: Any) -> Any:
            is_busy.set()
            assert released.wait(HANGS_S)
            return whole(*given)

        monkeypatch.setattr(client.engine.tokenizer, call, blocked)
        asking = asyncio.ensure_future(client.open("POST", path, body))
        await until(is_busy.is_set)
        assert (await client.open("GET", "/health"))[0] == 200
        assert not asking.done()
        released.set()
        assert (await asking)[0] == 200

    over_http(test, folder)
