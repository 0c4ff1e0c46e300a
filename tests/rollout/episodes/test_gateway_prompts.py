"""Prompts at the gateway: what continues the ids of an earlier call, what breaks them, and texts that are too long."""

import asyncio
import threading
from typing import Any

import aiohttp
import openai
import pytest

from areal_like.data.tokenizer import TextTokenizer
from areal_like.rollout.episodes.conversation import BRANCHING, ConversationRules
from areal_like.rollout.episodes.gateway.call_tree import AgentCall
from areal_like.rollout.episodes.gateway.session import SHORT_TEXT, AgentSession, SessionRules
from tests.data.test_chat_template_real import folder_of
from tests.support.agents import AgentClient, SampledTexts, open_session, user
from tests.support.chat_models import chat_tokenizer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
def plain(tmp_path):
    return chat_tokenizer(tmp_path / "plain")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return TextTokenizer(folder_of("qwen2_5", tmp_path_factory.mktemp("prompts") / "qwen"))


def at_gateway(engine: SampledTexts, agent: Any, rules: SessionRules | None = None, **conversation: Any) -> list[Any]:
    """What is trained on of the agent."""

    async def run() -> Any:
        opened = open_session(engine, rules, ConversationRules(**conversation))
        async with aiohttp.ClientSession() as http, opened as (session, endpoint):
            await agent(AgentClient(endpoint, http))
        return session.trajectory(1.0) if engine.log else []

    samples: list[Any] = asyncio.run(run())
    engine.check_exact(samples)
    return samples


async def complete(client: AgentClient, prompt: Any, **more: Any) -> Any:
    status, answer = await client.post(COMPLETIONS, {"prompt": prompt, **more})
    assert status == 200, answer
    return answer["choices"][0]


@pytest.mark.parametrize("as_ids", [False, True])
def test_a_prompt_that_repeats_an_answer_without_its_stop_token_is_a_break_of_the_ids_that_were_sampled(qwen, as_ids):
    """The client sees the text without it."""
    engine = SampledTexts(qwen, "so 1", "46", "", "9", end="<|im_end|>")

    async def agent(client: AgentClient) -> None:
        prompt = "1+1="
        for _ in range(2):
            given = qwen.encode(prompt, special=False) if as_ids else prompt
            prompt += (await complete(client, given))["text"] + "2+2="
        await complete(client, "5+5=")
        await complete(client, "5+5=")  # an empty answer is repeated by nothing

    samples = at_gateway(engine, agent)
    assert [each.metrics["template_breaks"] for each in samples] == [1, 1, 1, 1]
    assert len(samples) == 4
    if not as_ids:
        prompt, (first_prompt, first) = engine.log[1][0], engine.log[0]
        before = [*first_prompt, *first["token_ids"][:-1]]
        assert prompt[: len(before)] == before and prompt[len(before) :] == qwen.encode("2+2=", special=False)


def test_a_prompt_that_repeats_all_that_was_sampled_continues_it_without_a_break(qwen):
    engine = SampledTexts(qwen, "so 1", "46", end="<|im_end|>")

    async def agent(client: AgentClient) -> None:
        first = await complete(client, "1+1=")
        await complete(client, f"1+1={first['text']}<|im_end|>2+2=")

    (sample,) = at_gateway(engine, agent)
    assert (sample.metrics["turns"], sample.metrics["template_breaks"]) == (2, 0)


async def ask(session: AgentSession, kind: str, before: AgentCall | None = None) -> AgentCall:
    """A first question, or another one after the answer before."""
    if kind == "chat":
        messages = [user("1+1")] if before is None else [user("1+1"), before.reply, user("2+2")]
        prompt = await session.chat_prompt(messages, [])
    elif kind == "text":
        prompt = await session.text_prompt("1+1=" if before is None else f"1+1={before.text}2+2=")
    else:
        ids = [] if before is None else before.token_ids
        text = "1+1=" if before is None else "2+2="
        prompt = session.tree.ids_prompt([*ids, *session.tokenizer.encode(text, special=False)])
    (call,) = await session.generate(prompt, 1, {})
    return call


@pytest.mark.parametrize("kind", ["chat", "text", "ids"])
def test_of_equal_answers_a_client_continues_the_one_that_it_got(plain, kind):
    engine = SampledTexts(plain, "2", "2", "4")

    async def run() -> Any:
        async with open_session(engine) as (session, _):
            lost, got = await ask(session, kind), await ask(session, kind)
            got.is_delivered = True
            (await ask(session, kind, got)).is_delivered = True
            assert not lost.is_delivered
            return session.trajectory(1.0)

    (sample,) = asyncio.run(run())
    engine.check_exact([sample])
    assert (sample.metrics["turns"], sample.metrics["undelivered_calls"]) == (2, 1)


@pytest.mark.parametrize("kind", ["chat", "text", "ids"])
def test_a_client_that_continues_an_answer_has_got_it(plain, kind):
    """Even where its connection seemed to be cut."""
    engine = SampledTexts(plain, "2", "4")

    async def run() -> Any:
        async with open_session(engine) as (session, _):
            (await ask(session, kind, await ask(session, kind))).is_delivered = True
            return session.trajectory(1.0)

    (sample,) = asyncio.run(run())
    engine.check_exact([sample])
    num_sampled = sum(len(each["token_ids"]) for _, each in engine.log)
    assert (sample.metrics["turns"], sample.loss_mask.sum()) == (2, num_sampled)


@pytest.mark.parametrize("strategy", ["interleaved", BRANCHING])
def test_what_stands_between_answers_is_in_the_loss_if_it_is_not_masked(plain, strategy):
    engine = SampledTexts(plain, "2", "4")

    async def run() -> Any:
        rules = ConversationRules(mask_env_responses=False, trajectory_strategy=strategy)
        opened = open_session(engine, None, rules)
        async with aiohttp.ClientSession() as http, opened as (session, endpoint):
            client = AgentClient(endpoint, http)
            _, first = await client.post(CHAT, {"messages": [user("1+1")]})
            await client.post(CHAT, {"messages": [user("1+1"), first["choices"][0]["message"], user("2+2")]})
        return session.trajectory(1.0)

    samples = asyncio.run(run())
    (first_prompt, one), (second_prompt, two) = engine.log
    answered = len(first_prompt) + len(one["token_ids"])
    between = len(second_prompt) - answered
    assert between > 0
    if strategy == BRANCHING:
        assert samples[0].loss_mask.tolist() == [0] * len(first_prompt) + [1] * len(one["token_ids"])
        assert samples[1].loss_mask.tolist() == [0] * answered + [1] * (between + len(two["token_ids"]))
    else:
        rest = len(second_prompt) + len(two["token_ids"]) - len(first_prompt)
        assert samples[0].loss_mask.tolist() == [0] * len(first_prompt) + [1] * rest
    assert [each.observed_in_loss for each in samples][-1] == between


@pytest.mark.parametrize("masks", [False, True])
def test_what_stands_before_the_answers_of_branches_is_in_the_loss_once(plain, masks):
    engine = SampledTexts(plain, *"123456")

    async def run() -> Any:
        opened = open_session(engine, None, ConversationRules(mask_env_responses=masks))
        async with aiohttp.ClientSession() as http, opened as (session, endpoint):
            client = AgentClient(endpoint, http)
            ids = plain.encode("1+1=", special=False)
            first = [*ids, *(await complete(client, ids, return_token_ids=True))["token_ids"]]
            for text, n in (("22", 1), ("333", 2), ("333", 1), ("4444", 1)):
                await complete(client, [*first, *plain.encode(text, special=False)], n=n)
        return session.trajectory(1.0)

    samples = asyncio.run(run())
    answered = len(engine.log[0][0]) + len(engine.log[0][1]["token_ids"])
    assert [each.observed_in_loss for each in samples] == ([0] * 5 if masks else [2, 3, 0, 0, 4])
    assert sum(each.loss_mask[:answered].sum() for each in samples) == len(engine.log[0][1]["token_ids"])


@pytest.mark.parametrize("more", [{"trajectory_strategy": BRANCHING}, {"turn_discount": 0.5}])
def test_what_stands_before_several_answers_is_in_the_loss_once_also_where_each_is_a_sample(plain, more):
    engine = SampledTexts(plain, *"123")

    async def run() -> Any:
        rules = SessionRules(turn_discount=more.get("turn_discount"))
        strategy = {name: value for name, value in more.items() if name == "trajectory_strategy"}
        opened = open_session(engine, rules, ConversationRules(mask_env_responses=False, **strategy))
        async with aiohttp.ClientSession() as http, opened as (session, endpoint):
            client = AgentClient(endpoint, http)
            ids = plain.encode("1+1=", special=False)
            first = [*ids, *(await complete(client, ids, return_token_ids=True))["token_ids"]]
            await complete(client, [*first, *plain.encode("333", special=False)], n=2)
        return session.trajectory(1.0)

    assert [each.observed_in_loss for each in asyncio.run(run())] == [0, 3, 0]


def test_tokenize_gives_messages_also_without_the_beginning_of_an_answer(qwen):
    engine = SampledTexts(qwen)
    messages = [user("1+1"), {"role": "assistant", "content": "2"}]

    async def agent(client: AgentClient) -> None:
        async def ids(**more: Any) -> list[int]:
            status, answer = await client.post("/tokenize", {"messages": messages, **more})
            assert status == 200, answer
            tokens: list[int] = answer["tokens"]
            return tokens

        closed = qwen.chat.render(messages, add_generation_prompt=False, tools=None)
        opened = qwen.chat.render(messages, add_generation_prompt=True, tools=None)
        assert await ids(add_generation_prompt=False) == qwen.encode(closed, special=False)
        assert await ids() == await ids(add_generation_prompt=True) == qwen.encode(opened, special=False)
        assert (await client.post("/tokenize", {"messages": messages, "add_generation_prompt": 0}))[0] == 400

    at_gateway(engine, agent)


@pytest.mark.parametrize("route", [CHAT, "/v1/responses", COMPLETIONS, "/tokenize"])
@pytest.mark.parametrize("characters", [500_000, SHORT_TEXT + 1, 10])
def test_a_long_text_is_refused_before_it_is_tokenized_or_tokenized_beside_the_other_episodes(
    plain, monkeypatch, route, characters
):
    engine, threads, here = SampledTexts(plain, "1"), [], threading.current_thread()
    encode = plain.encode

    def seen(text: str, special: bool = True) -> list[int]:
        threads.append((len(text), threading.current_thread() is here))
        ids: list[int] = encode(text, special)
        return ids

    monkeypatch.setattr(plain, "encode", seen)
    text = "1" * characters
    keys = {"/v1/responses": {"input": text}, CHAT: {"messages": [user(text)]}}

    async def agent(client: AgentClient) -> None:
        status, answer = await client.post(route, keys.get(route, {"prompt": text}))
        if characters == 500_000 or (characters > SHORT_TEXT and route != "/tokenize"):
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        else:
            assert status == 200, answer

    at_gateway(engine, agent)
    threads = [each for each in threads if each[0] >= characters]
    if characters == 500_000:
        assert not threads
    else:
        assert [is_here for _, is_here in threads] == [characters == 10]


def test_an_agent_that_only_measures_a_prompt_without_room_is_not_cut_off(plain):
    long = [user("1" * 500_000)]
    engine = SampledTexts(plain, "2", "3")

    async def agent(client: AgentClient) -> None:
        assert (await client.post(CHAT, {"messages": [user("1+1")]}))[0] == 200
        for route in ("/tokenize", "/v1/messages/count_tokens"):
            status, answer = await client.post(route, {"messages": long})
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")

    async def goes_on(client: AgentClient) -> None:
        await agent(client)
        await client.post(CHAT, {"messages": long})
        await client.post("/tokenize", {"messages": [user("1+1")]})

    assert [each.finish for each in at_gateway(engine, agent)] == ["stop"]
    assert [each.finish for each in at_gateway(engine, goes_on)] == ["length"]


def test_a_template_that_refuses_the_marks_of_its_own_answers_gets_their_parts_and_the_break_is_counted(tmp_path):
    tokenizer = TextTokenizer(folder_of("gptoss", tmp_path / "model"))
    raw = "<|channel|>analysis<|message|>one and one<|end|><|start|>assistant<|channel|>final<|message|>2"
    engine = SampledTexts(tokenizer, raw, raw, raw, "5", end="<|return|>")

    async def agent(client: AgentClient) -> None:
        messages = [user("1+1")]
        for _ in range(2):
            status, answer = await client.post(CHAT, {"messages": messages})
            assert status == 200, answer
            reply = answer["choices"][0]["message"]
            assert reply["content"] == "2"
            messages += [reply, user("again")]
        first = await complete(client, "1+1=")
        await complete(client, f"1+1={first['text']}2+2=")

    samples = at_gateway(engine, agent)
    assert samples[0].metrics["template_breaks"] == 2 and len(samples) == 4
    prompt, (before, sampled) = engine.log[3][0], engine.log[2]
    assert prompt[: len(before) + len(sampled["token_ids"]) - 1] == [*before, *sampled["token_ids"][:-1]]
    assert "one and one" in tokenizer.decode(engine.log[0][1]["token_ids"])
    assert "one and one" not in tokenizer.decode(engine.log[1][0])


def test_a_stream_of_completions_ends_with_its_usage_if_it_is_asked_for(plain):
    engine = SampledTexts(plain, "2", "2")

    def client_of(endpoint: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.key)

    async def run() -> None:
        async with open_session(engine) as (_, endpoint), client_of(endpoint) as policy:
            for asked in ({"stream_options": {"include_usage": True}}, {}):
                given: Any = {"model": "any", "prompt": "1+1=", "stream": True, **asked}
                chunks = [chunk async for chunk in await policy.completions.create(**given)]
                assert chunks[0].choices[0].text == "2" and chunks[0].usage is None
                last = chunks[-1].usage
                assert len(chunks) == 1 + bool(asked) and (last is not None) == bool(asked)
                if last is not None:
                    assert last.completion_tokens == len(engine.log[0][1]["token_ids"])

    asyncio.run(run())


def test_calls_that_no_tool_could_answer_count_as_tool_errors(qwen):
    written = ['{"name": "add", "arguments": {}}', '{"name": "subtract", "arguments": {}}', "add 1 and 2"]
    calls = "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in written)
    engine = SampledTexts(qwen, calls, "<tool_call>\nadd\n</tool_call>", "2", end="<|im_end|>")

    async def agent(client: AgentClient) -> None:
        for text in ("1+1?", "1+2?"):
            await client.post(CHAT, {"messages": [user(text)], "tools": [ADD]})
        await client.post(CHAT, {"messages": [user("1+3?")]})

    samples = at_gateway(engine, agent)
    assert {(each.metrics["tool_calls"], each.metrics["tool_errors"]) for each in samples} == {(4, 3)}


@pytest.mark.parametrize("strategy", ["interleaved", BRANCHING])
def test_each_sample_has_the_messages_up_to_its_last_answer(plain, strategy):
    engine = SampledTexts(plain, *"1234")

    async def agent(client: AgentClient) -> None:
        async def ask(*messages: Any) -> Any:
            return (await client.post(CHAT, {"messages": list(messages)}))[1]["choices"][0]["message"]

        one = await ask(user("1+1"))
        await ask(user("sub"))
        await ask(user("1+1"), one, user("2+2"))
        await complete(client, "3+3=")

    samples = at_gateway(engine, agent, trajectory_strategy=strategy)
    contents = [each.messages and [message["content"] for message in each.messages] for each in samples]
    talk, sub = ["1+1", "1", "2+2", "3"], ["sub", "2"]
    assert contents == ([talk[:2], sub, talk, None] if strategy == BRANCHING else [talk, sub, None])
