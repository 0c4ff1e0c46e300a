"""OpenAI's own client with a server of a run: answers, and exceptions that name the reason."""

import asyncio
from collections.abc import Iterator

import openai
import pytest

from areal_like.data.tasks.addition import Addition
from tests.ring.server import MODEL, SECRET, Server, serving

pytestmark = pytest.mark.xdist_group("ring-2")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("openai") / "run") as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    """It has the key, and none of the other headers of a run's call."""
    with openai.OpenAI(base_url=f"http://{server.address}/v1", api_key=SECRET, max_retries=0) as made:
        yield made


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    models = list(client.models.list())
    assert [(model.id, model.object, model.owned_by) for model in models] == [(MODEL, "model", "areal-like")]


def test_greedy_answers_to_several_prompts(client: openai.OpenAI) -> None:
    rows = Addition().rows("train")[:200]
    done = client.completions.create(model=MODEL, prompt=[row["prompt"] for row in rows], max_tokens=6, temperature=0)
    assert (done.object, done.model, len(done.choices)) == ("text_completion", MODEL, 200)
    assert [choice.index for choice in done.choices] == list(range(200))
    right = sum(choice.text == row["answer"] for choice, row in zip(done.choices, rows, strict=True))
    assert right > 40, f"{right} of 200 sums are right"
    assert {choice.finish_reason for choice in done.choices} <= {"stop", "length"}
    assert done.usage is not None
    assert done.usage.prompt_tokens == sum(len(row["prompt"]) for row in rows)
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens


def test_a_seed_gives_the_same_samples_again_and_another_gives_others(client: openai.OpenAI) -> None:
    def texts(seed: int | None) -> list[str]:
        done = client.completions.create(model=MODEL, prompt="12+34=", n=8, seed=seed, temperature=1.5, max_tokens=5)
        return [choice.text for choice in done.choices]

    first = texts(7)
    assert len(first) == 8 and len(set(first)) > 1
    assert texts(7) == first
    assert texts(8) != first
    assert texts(None) != texts(None)


def test_logprobs_belong_to_the_sampled_tokens(client: openai.OpenAI) -> None:
    def sample(temperature: float) -> openai.types.CompletionChoice:
        return client.completions.create(
            model=MODEL, prompt="12+34=", logprobs=1, seed=1, temperature=temperature, max_tokens=5
        ).choices[0]

    logprobs = sample(1.0).logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None and logprobs.token_logprobs is not None and logprobs.text_offset is not None
    assert 1 <= len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) <= 5
    assert all(value is not None and value <= 0 for value in logprobs.token_logprobs)
    greedy = sample(0.0).logprobs
    assert greedy is not None and greedy.tokens is not None and "".join(greedy.tokens).endswith("<eos>")
    assert sample(1.0).logprobs == logprobs
    assert client.completions.create(model=MODEL, prompt="1+1=").choices[0].logprobs is None


def test_an_answer_ends_at_a_stop_token_or_the_length_limit(client: openai.OpenAI) -> None:
    extra = {"return_token_ids": True}
    whole = client.completions.create(model=MODEL, prompt="12+34=", temperature=0, extra_body=extra).choices[0]
    ids = whole.to_dict()["token_ids"]
    assert isinstance(ids, list) and whole.finish_reason == "stop" and len(ids) >= 3
    stopping = {**extra, "stop_token_ids": [ids[1]]}
    stopped = client.completions.create(model=MODEL, prompt="12+34=", temperature=0, extra_body=stopping).choices[0]
    ends = ids.index(ids[1]) + 1
    assert (stopped.finish_reason, stopped.to_dict()["token_ids"]) == ("stop", ids[:ends])
    short = client.completions.create(model=MODEL, prompt="12+34=", temperature=0, max_tokens=1).choices[0]
    assert (short.finish_reason, short.text) == ("length", whole.text[:1])


def test_a_text_ends_an_answer_and_is_not_in_it(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="12+34=", temperature=0).choices[0].text
    cut = client.completions.create(model=MODEL, prompt="12+34=", temperature=0, stop=[whole[1]]).choices[0]
    assert (cut.text, cut.finish_reason) == (whole[: whole.index(whole[1])], "stop")


def test_top_logprobs_are_returned_for_each_token(client: openai.OpenAI) -> None:
    choice = client.completions.create(model=MODEL, prompt="12+34=", temperature=0, logprobs=3, top_p=0.5).choices[0]
    assert (
        choice.logprobs is not None and choice.logprobs.top_logprobs is not None and choice.logprobs.tokens is not None
    )
    for top, token in zip(choice.logprobs.top_logprobs, choice.logprobs.tokens, strict=True):
        assert len(top) == 3 and max(top, key=lambda one: top[one]) == token


def test_concurrent_clients_get_the_answers_of_single_clients(server: Server, client: openai.OpenAI) -> None:
    prompts = [f"{number:02}+{99 - number:02}=" for number in range(16)]

    async def together() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"http://{server.address}/v1", api_key=SECRET, max_retries=0) as many:
            calls = (many.completions.create(model=MODEL, prompt=prompt, seed=3, n=2) for prompt in prompts)
            return [choice.text for done in await asyncio.gather(*calls) for choice in done.choices]

    alone = [client.completions.create(model=MODEL, prompt=prompt, seed=3, n=2).choices for prompt in prompts]
    assert asyncio.run(together()) == [choice.text for choices in alone for choice in choices]


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        (
            {"model": "gpt-4"},
            openai.NotFoundError,
            "model: 'gpt-4' is not served here; this is 'builtin:tiny-addition'",
        ),
        ({"logit_bias": {"3": 1}}, openai.BadRequestError, "logit_bias: {'3': 1} is not supported"),
        ({"stream": True}, openai.BadRequestError, "stream: "),
        ({"top_p": 1.5}, openai.BadRequestError, "top_p: 1.5 "),
        ({"logprobs": 6}, openai.BadRequestError, "logprobs: 6 "),
        ({"prompt": "Ä"}, openai.BadRequestError, "prompt: the tokenizer cannot read"),
        ({"prompt": "1" * 64}, openai.BadRequestError, "embedded.context_length: "),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens: 0 "),
        ({"n": 0}, openai.BadRequestError, "n: 0 "),
        ({"n": -1}, openai.BadRequestError, "n: -1 "),
    ],
)
def test_unsupported_requests_raise_client_exceptions_that_name_the_field(
    client: openai.OpenAI, changes: dict[str, object], kind: type[openai.APIStatusError], message: str
) -> None:
    request: dict[str, object] = {"model": MODEL, "prompt": "1+1=", **changes}
    with pytest.raises(kind) as caught:
        client.completions.create(**request)  # type: ignore[call-overload]
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["message"].startswith(message)
    assert caught.value.body["type"] == "invalid_request_error"


def test_an_unknown_route_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "1+1="}])
