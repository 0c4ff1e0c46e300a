"""The gateway: what an agent's calls get, what is trained on, and who may call."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import openai
import pytest

from areal_like.data.tokenizer import TextTokenizer
from areal_like.process.frames import pack, unpack
from areal_like.rollout.episodes.conversation import BRANCHING, ConversationRules
from areal_like.rollout.episodes.gateway.call_sampling import GCONFIG, REQUEST, CallSampling
from areal_like.rollout.episodes.gateway.session import SessionRules
from areal_like.rollout.episodes.generation_client import GenerationError
from areal_like.rollout.trajectory import pack_group
from tests.data.test_chat_template_real import folder_of
from tests.support.agents import SAMPLING, AgentClient, SampledTexts, open_session, user
from tests.support.chat_models import SHORTENS, chat_tokenizer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ADD = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return chat_tokenizer(tmp_path_factory.mktemp("gateway") / "plain")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return TextTokenizer(folder_of("qwen2_5", tmp_path_factory.mktemp("gateway") / "qwen"))


def at_gateway(
    engine: SampledTexts,
    agent: Callable[[AgentClient, Any], Awaitable[None]],
    rules: SessionRules | None = None,
    **conversation: Any,
) -> Any:
    """Runs the agent; returns its session, which has ended."""

    async def run() -> Any:
        opened = open_session(engine, rules, ConversationRules(**conversation))
        async with aiohttp.ClientSession() as http, opened as (session, endpoint):
            await agent(AgentClient(endpoint, http), session)
        return session

    return asyncio.run(run())


def test_the_openai_client_streams_and_calls_a_tool_and_its_ids_are_those_sampled(qwen):
    call = '<tool_call>\n{"name": "add", "arguments": {"carry":false, "numbers": [1,2]}}\n</tool_call>'
    engine = SampledTexts(qwen, f"let me see\n{call}", "It is 3.", end="<|im_end|>")

    async def agent(client: AgentClient, _: Any) -> None:
        async with openai.AsyncOpenAI(base_url=client.endpoint.base_url, api_key=client.endpoint.key) as policy:
            messages: list[Any] = [user("1+2?")]
            tools: Any = [ADD]
            reply = (await policy.chat.completions.create(model="any", messages=messages, tools=tools)).choices[0]
            assert reply.finish_reason == "tool_calls" and reply.message.content == "let me see"
            (called,) = reply.message.tool_calls or []
            assert json.loads(called.function.arguments) == {"carry": False, "numbers": [1, 2]}  # type: ignore[union-attr]
            messages += [reply.message, {"role": "tool", "tool_call_id": called.id, "content": "3"}]
            engine.version = 1
            stream = await policy.chat.completions.create(
                model="any", messages=messages, tools=tools, stream=True, stream_options={"include_usage": True},
                logprobs=True, extra_body={"return_token_ids": True},
            )  # fmt: skip
            chunks = [chunk async for chunk in stream]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            assert text == "It is 3." and chunks[-1].usage is not None
            prompt, sample = engine.log[1]
            assert chunks[0].prompt_token_ids == prompt  # type: ignore[attr-defined]
            assert chunks[0].choices[0].token_ids == sample["token_ids"]  # type: ignore[attr-defined]
            logprobs = chunks[0].choices[0].logprobs
            assert logprobs is not None and [each.logprob for each in logprobs.content or []] == sample["logprobs"]
            assert [each.id for each in (await policy.models.list()).data] == ["policy"]

    session = at_gateway(engine, agent)
    (sample,) = session.trajectory(1.0)
    engine.check_exact([sample])
    assert sample.loss_mask.sum() == sum(len(each["token_ids"]) for _, each in engine.log)
    assert (sample.versions[sample.loss_mask == 1][-1], sample.metrics["turns"], sample.metrics["tool_calls"]) == (
        1,
        2,
        1,
    )
    assert (sample.metrics["template_breaks"], sample.metrics["undelivered_calls"]) == (0, 0)


@pytest.mark.parametrize("streams", [False, True])
def test_whatever_arguments_a_model_writes_the_client_gets_an_answer_and_can_continue_it(qwen, streams):
    """Integers of more than 64 bits, deep nesting, other alphabets; what is no JSON is no call."""
    deep = '{"a":' * 300 + "1" + "}" * 300
    written = [f'{{"number": {10**40}}}', f'{{"deep": {deep}}}', '{"text": "\u00e9 \\" \\\\"}', '{"x": 1.0, "y": -0}']
    texts = [*written, '{"x": NaN}', '{"x": 1e999}', '{"x": "\\ud800"}']
    calls = [f'<tool_call>\n{{"name": "add", "arguments": {each}}}\n</tool_call>' for each in texts]
    engine = SampledTexts(qwen, *calls, "done", end="<|im_end|>")

    async def agent(client: AgentClient, _: Any) -> None:
        async with openai.AsyncOpenAI(
            base_url=client.endpoint.base_url, api_key=client.endpoint.key, max_retries=0
        ) as policy:
            messages: list[Any] = [user("1+2?")]
            tools: Any = [ADD]
            for text in texts:
                given: Any = {"model": "any", "messages": messages, "tools": tools}
                if streams:
                    async with policy.chat.completions.stream(**given) as stream:
                        reply = (await stream.get_final_completion()).choices[0].message
                else:
                    reply = (await policy.chat.completions.create(**given)).choices[0].message
                called = reply.tool_calls or []
                assert len(called) == (text in written)
                messages.append(reply.to_dict() if streams else reply)
                for each in called:
                    assert json.loads(each.function.arguments) == json.loads(text)
                    messages.append({"role": "tool", "tool_call_id": each.id, "content": "3"})
                messages.append(user("again"))
            await policy.chat.completions.create(model="any", messages=messages, tools=tools)

    (sample,) = at_gateway(engine, agent).trajectory(1.0)
    engine.check_exact([sample])
    assert (sample.metrics["turns"], sample.metrics["template_breaks"]) == (len(texts) + 1, 0)
    facts, _ = pack_group([sample])
    (fact,) = unpack(pack({"facts": facts})).header["facts"]
    kept = [each["function"]["arguments"] for message in fact["messages"] for each in message.get("tool_calls", ())]
    assert kept[0] == {"number": str(10**40)} and kept[2:] == [json.loads(text) for text in written[2:]]
    assert json.dumps(kept[1]).count("{") == 301


@pytest.mark.parametrize("streams", [False, True])
def test_the_openai_client_uses_responses_with_a_tool_and_the_answer_before(qwen, streams):
    call = '<tool_call>\n{"name": "add", "arguments": {"carry":false}}\n</tool_call>'
    engine = SampledTexts(qwen, f"let me see\n{call}", "It is 3.", "4", end="<|im_end|>")
    add = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False, "description": ""}

    async def agent(client: AgentClient, session: Any) -> None:
        async with openai.AsyncOpenAI(base_url=client.endpoint.base_url, api_key=client.endpoint.key) as policy:

            async def ask(**asked: Any) -> Any:
                given = {"model": "any", "tools": [add], "instructions": "be brief", **asked}
                if not streams:
                    return await policy.responses.create(**given)
                async with policy.responses.stream(**given) as stream:
                    return await stream.get_final_response()

            first = await ask(input="1+2?")
            text, called = first.output
            assert text.content[0].text == "let me see" and json.loads(called.arguments) == {"carry": False}
            result = {"type": "function_call_output", "call_id": called.call_id, "output": "3"}
            items = [each.model_dump(exclude_none=True) for each in first.output]
            for each in items:
                each.pop("parsed_arguments", None)
            second = await ask(input=[user("1+2?"), *items, result])
            assert second.output_text == "It is 3." and second.usage.output_tokens == len(engine.log[1][1]["token_ids"])
            third = await ask(input="2+2?", previous_response_id=second.id)
            assert third.output_text == "4"
            assert (await client.post("/v1/responses", {"input": "x", "previous_response_id": "none"}))[0] == 400

    (sample,) = at_gateway(engine, agent).trajectory(1.0)
    engine.check_exact([sample])
    assert (sample.metrics["turns"], sample.metrics["template_breaks"]) == (3, 0)


def test_a_scripted_agent_leaves_every_token_trained_on_in_the_engines_log_once(plain):
    """It retries, forks a sub-agent, branches, compacts its history, and holds two calls open during an update."""
    engine = SampledTexts(plain, *"123456789")

    async def agent(client: AgentClient, session: Any) -> None:
        async def ask(*messages: Any, **headers: str) -> Any:
            status, answer = await client.post(CHAT, {"messages": list(messages)}, **headers)
            assert status == 200, answer
            return answer["choices"][0]["message"]

        one = await ask(user("1+1"), **{"Idempotency-Key": "one"})
        assert await ask(user("1+1"), **{"Idempotency-Key": "one"}) == one  # a retry gets the same answer
        engine.gate.clear()
        open_calls = [
            asyncio.create_task(ask(user("1+1"), one, user("2+2"))),
            asyncio.create_task(ask({"role": "system", "content": "5"}, user("3+3"))),  # a sub-agent
        ]
        while len(engine.groups) < 3:
            await asyncio.sleep(0.001)
        engine.version = 1
        engine.gate.set()
        two, _ = await asyncio.gather(*open_calls)
        await ask(user("1+1"), one, user("4+4"))  # a branch
        await ask(user("1+1"), one, user("2+2"), two, user("5+5"))
        await ask(user("6+6"), two, user("7+7"))  # a history without its beginning

    session = at_gateway(engine, agent)
    samples = session.trajectory(0.5)
    engine.check_exact(samples)
    assert sum(int(each.loss_mask.sum()) for each in samples) == sum(len(each["token_ids"]) for _, each in engine.log)
    assert len(engine.log) == 6 and len(samples) == 4
    assert {(each.metrics["turns"], each.metrics["template_breaks"]) for each in samples} == {(6, 1)}
    assert sorted({int(version) for each in samples for version in each.versions if version >= 0}) == [0, 1]
    assert len({group["seed"] for group in engine.groups}) == 6


def test_an_answer_that_nobody_got_is_not_trained_on_and_a_repeated_request_gets_it(plain):
    engine = SampledTexts(plain, "1", "2", "3")

    async def agent(client: AgentClient, session: Any) -> None:
        async def cut(text: str) -> None:
            before = len(engine.groups)
            engine.gate.clear()
            calling = asyncio.create_task(client.post(CHAT, {"messages": [user(text)]}))
            while len(engine.groups) == before:
                await asyncio.sleep(0.001)
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
            pending = session.pending._answers[-1]
            while not pending.is_cut:
                await asyncio.sleep(0.001)
            engine.gate.set()
            await pending.task

        await cut("1+1")
        await cut("2+2")
        status, answer = await client.post(CHAT, {"messages": [user("1+1")]})
        assert (status, answer["choices"][0]["message"]["content"], len(engine.log)) == (200, "1", 2)

    (sample,) = at_gateway(engine, agent).trajectory(1.0)
    engine.check_exact([sample])
    assert (sample.metrics["turns"], sample.metrics["undelivered_calls"]) == (1, 1)


def test_where_the_template_rewrites_thoughts_a_new_sequence_begins_and_the_break_counts(tmp_path):
    tokenizer = chat_tokenizer(tmp_path / "shortens", SHORTENS)
    engine = SampledTexts(tokenizer, "1]2", "4")

    async def agent(client: AgentClient, _: Any) -> None:
        _, first = await client.post(CHAT, {"messages": [user("1+1")]})
        await client.post(CHAT, {"messages": [user("1+1"), first["choices"][0]["message"], user("2+2")]})

    samples = at_gateway(engine, agent).trajectory(1.0)
    engine.check_exact(samples)
    assert [each.metrics["template_breaks"] for each in samples] == [1, 1]


@pytest.mark.parametrize("strategy", ["interleaved", BRANCHING])
def test_prompts_may_be_ids_or_texts(plain, strategy):
    engine = SampledTexts(plain, "2", "4", "6", "8")

    async def agent(client: AgentClient, _: Any) -> None:
        ids = plain.encode("1+1=", special=False)
        _, first = await client.post("/v1/completions", {"prompt": ids, "return_token_ids": True, "logprobs": 1})
        answer = first["choices"][0]
        assert answer["token_ids"] == engine.log[0][1]["token_ids"] and answer["prompt_token_ids"] == ids
        assert answer["logprobs"]["token_logprobs"] == engine.log[0][1]["logprobs"]
        more = [*ids, *answer["token_ids"], *plain.encode("2+2=", special=False)]
        _, second = await client.post(f"{CHAT}/tokens", {"tokens": more, "messages": [user("2+2")]})
        assert second["choices"][0]["message"]["content"] == "4"
        _, third = await client.post("/v1/completions", {"prompt": "3+3=", "n": 2})
        assert [each["text"] for each in third["choices"]] == ["6", "8"]
        counted = {"messages": [user("3+3")]}
        _, tokens = await client.post("/tokenize", counted)
        assert plain.decode(tokens["tokens"], skip_special=False) == "<user> 3+3<eos><assistant> "

    samples = at_gateway(engine, agent, trajectory_strategy=strategy).trajectory(1.0)
    engine.check_exact(samples)
    assert len(samples) == (4 if strategy == BRANCHING else 3)


def test_rewards_of_calls_are_discounted_to_those_before(plain):
    engine = SampledTexts(plain, "1", "2", "3")

    async def agent(client: AgentClient, session: Any) -> None:
        _, first = await client.post(CHAT, {"messages": [user("1+1")]})
        await client.post(CHAT, {"messages": [user("1+1"), first["choices"][0]["message"], user("2+2")]})
        await client.post(CHAT, {"messages": [user("3+3")]})
        assert (await client.post("/v1/reward", {"id": first["id"], "reward": 0.25}))[0] == 200
        assert (await client.post("/v1/reward", {"reward": 1}))[0] == 200
        for wrong in ({"reward": "1"}, {"reward": True}, {}, {"reward": 1, "id": "other"}, {"reward": 1e300}):
            assert (await client.post("/v1/reward", wrong))[0] in (400, 404)
        assert session.posted == 1

    samples = at_gateway(engine, agent, SessionRules(turn_discount=0.5)).trajectory(1.0)
    engine.check_exact(samples)
    assert [each.reward for each in samples] == [0.25 + 0.5 * 0.5, 0.5, 1.0]


def test_each_of_several_answers_to_one_call_gets_its_own_reward(plain):
    engine = SampledTexts(plain, *"1234")

    async def agent(client: AgentClient, _: Any) -> None:
        _, chat = await client.post(CHAT, {"messages": [user("1+1")], "n": 2})
        _, text = await client.post("/v1/completions", {"prompt": "2+2", "n": 2})
        for reward, choice in enumerate([*chat["choices"], *text["choices"]]):
            assert (await client.post("/v1/reward", {"id": choice["id"], "reward": reward}))[0] == 200

    samples = at_gateway(engine, agent, SessionRules(turn_discount=0.0)).trajectory(0.0)
    assert [each.reward for each in samples] == [0.0, 1.0, 2.0, 3.0]


def test_choices_of_one_call_are_not_discounted_into_each_other(plain):
    engine = SampledTexts(plain, *"12345")

    async def agent(client: AgentClient, _: Any) -> None:
        await client.post(CHAT, {"messages": [user("0+1")]})
        for prompt, rewards in (("1+1", (0.0, 1.0)), ("2+2", (0.5, 0.0))):
            _, chat = await client.post(CHAT, {"messages": [user(prompt)], "n": 2})
            for reward, choice in zip(rewards, chat["choices"], strict=True):
                assert (await client.post("/v1/reward", {"id": choice["id"], "reward": reward}))[0] == 200

    samples = at_gateway(engine, agent, SessionRules(turn_discount=0.5)).trajectory(1.0)
    last = [0.5 + 1.0, 0.0 + 1.0]
    second = [0.0 + 0.5 * 1.25, 1.0 + 0.5 * 1.25]
    assert [each.reward for each in samples] == [0.5 * sum(second) / 2, *second, *last]


@pytest.mark.parametrize("extra", [0, 1, 50])
@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions/tokens", "batch"])
def test_a_prompt_of_ids_without_room_has_the_code_of_one_that_is_too_long(plain, route, extra):
    engine = SampledTexts(plain, "1")

    async def agent(client: AgentClient, session: Any) -> None:
        ids = [1] * (session.context_length + extra)
        body = {"tokens": ids} if route.endswith("tokens") else {"prompt": [ids] if route == "batch" else ids}
        await client.post(CHAT, {"messages": [user("1+1")]})
        status, refused = await client.post(COMPLETIONS if route == "batch" else route, body)
        assert status == 400 and refused["error"]["code"] == "context_length_exceeded"
        assert "leaves no room in the context length" in refused["error"]["message"]

    (sample,) = at_gateway(engine, agent).trajectory(1.0)
    assert sample.finish == "length"


@pytest.mark.parametrize("goes_on", [False, True])
def test_an_agent_that_ends_because_there_is_no_room_counts_as_cut_off(plain, goes_on):
    engine = SampledTexts(plain, *"123")

    async def agent(client: AgentClient, _: Any) -> None:
        for prompt in ("1+1", "2+2", "3" * 5000, *(["4+4"] if goes_on else [])):
            await client.post(CHAT, {"messages": [user(prompt)]})
        assert (await client.post("/v1/reward", {"reward": "none"}))[0] == 400

    samples = at_gateway(engine, agent).trajectory(1.0)
    assert [each.finish for each in samples] == (["stop"] * 3 if goes_on else ["stop", "length"])


def test_sampling_of_an_agent_is_ignored_or_refused_and_its_limits_hold(plain):
    engine = SampledTexts(plain, *"1234")

    async def agent(client: AgentClient, _: Any) -> None:
        tiny = {"temperature": 1e-3, "top_p": 1e-9}
        assert (await client.post(CHAT, {"messages": [user("0")], **tiny}))[0] == 200
        hot = {"temperature": 2.0, "seed": 3, "max_tokens": 7, "stop": "x", "response_format": {"type": "json_object"}}
        assert (await client.post(CHAT, {"messages": [user("1")], **hot}))[0] == 200
        assert (await client.post(CHAT, {"messages": [user("2")]}))[0] == 200
        status, refused = await client.post(CHAT, {"messages": [user("3")]})
        assert status == 400 and refused["error"]["message"].startswith("agent.max_calls: ")

    at_gateway(engine, agent, SessionRules(max_calls=3))
    assert [engine.groups[0]["sampling"][key] for key in ("temperature", "top_p")] == [0.5, 1.0]
    sampling = engine.groups[1]["sampling"]
    assert (sampling["temperature"], sampling["max_new_tokens"], sampling["stop"]) == (0.5, 7, ["x"])

    async def strict(client: AgentClient, _: Any) -> None:
        for asked in ({"temperature": 2.0}, {"top_p": 1e-9}, {"presence_penalty": 1.0}):
            status, refused = await client.post(CHAT, {"messages": [user("1")], **asked})
            assert status == 400 and next(iter(asked)) in refused["error"]["message"]

    at_gateway(engine, strict, SessionRules(sampling="request"))


@pytest.mark.parametrize(
    ("asked", "greedy"),
    [
        ({}, True),
        ({"temperature": 0.7}, False),
        ({"temperature": 0.5}, False),  # that of the run
        ({"top_p": 0.9}, False),
        ({"temperature": 0, "top_p": 0.9}, True),
        ({"max_tokens": 3}, True),
    ],
)
@pytest.mark.parametrize("mode", [GCONFIG, REQUEST])
def test_a_greedy_evaluation_draws_by_chance_where_the_wishes_of_an_agent_hold(mode, asked, greedy):
    base = {**SAMPLING, "greedy": True}
    assert {**base, **CallSampling(base, mode, set()).read(asked)}["greedy"] is (greedy or mode == GCONFIG)


@pytest.mark.parametrize("keys", [{"continue_final_message": True, "add_generation_prompt": False}])
def test_an_answer_whose_beginning_is_given_is_refused(plain, keys):
    engine = SampledTexts(plain)

    async def agent(client: AgentClient, _: Any) -> None:
        messages = [user("1+1"), {"role": "assistant", "content": "2"}]
        status, refused = await client.post(CHAT, {"messages": messages, **keys})
        assert status == 400 and refused["error"]["message"].startswith("continue_final_message: ")
        status, refused = await client.post("/v1/messages", {"messages": messages, "max_tokens": 5})
        assert status == 400 and refused["error"]["message"].startswith("messages.1: an answer whose beginning")
        assert (await client.post("/v1/messages/count_tokens", {"messages": messages})) == (200, {"input_tokens": 37})

    assert at_gateway(engine, agent).tree.calls == []


IN_VAIN: dict[str, Any] = {
    **{"temperature": 1e-3, "tool_choice": "required", "best_of": 2, "guided_choice": ["1", "2"]},
    **{"reasoning_effort": "low", "reasoning": {"effort": "low"}, "verbosity": "low"},
}
ONLY_LOGGED: dict[str, Any] = {"parallel_tool_calls": False, "chat_template_kwargs": {"enable_thinking": False}}


@pytest.mark.parametrize("mode", [GCONFIG, REQUEST])
def test_what_an_agent_asks_for_in_vain_is_named_by_the_log_or_by_a_refusal(plain, caplog, mode):
    refused = IN_VAIN if mode == REQUEST else {}
    engine = SampledTexts(plain, *"1" * 30)

    async def agent(client: AgentClient, _: Any) -> None:
        for key, value in {**IN_VAIN, **ONLY_LOGGED, "n": 1}.items():
            route = COMPLETIONS if key == "best_of" else CHAT
            for _ in range(2):
                status, answer = await client.post(route, {"prompt": "1", "messages": [user("1")], key: value})
                assert status == (400 if key in refused else 200), (key, answer)
                assert key not in refused or answer["error"]["message"].startswith(f"{key}: ")
        for neutral in ({"n": 2, "best_of": 2}, {"parallel_tool_calls": True, "chat_template_kwargs": {}}):
            assert (await client.post(COMPLETIONS, {"prompt": "1", **neutral}))[0] == 200

    at_gateway(engine, agent, SessionRules(sampling=mode))
    named = [each.getMessage().partition("agents ask for ")[2].partition("=")[0] for each in caplog.records]
    assert sorted(filter(None, named)) == sorted({**IN_VAIN, **ONLY_LOGGED}.keys() - refused.keys())


@pytest.mark.parametrize(
    ("route", "asked", "message"),
    [
        (CHAT, {"functions": [ADD["function"]]}, "functions: is not supported; use tools"),
        (CHAT, {"top_logprobs": 5}, "top_logprobs: 5 is not supported; logprobs has the sampled tokens"),
        (COMPLETIONS, {"logprobs": 5}, "logprobs: 5 is not supported; 1 has the sampled tokens"),
        (COMPLETIONS, {"suffix": "2"}, "suffix: is not supported; leave it out"),
    ],
)
def test_what_no_answer_could_have_is_refused_by_the_name_that_the_client_sent(plain, route, asked, message):
    async def agent(client: AgentClient, _: Any) -> None:
        status, answer = await client.post(route, {"prompt": "1", "messages": [user("1")], **asked})
        assert (status, answer["error"]["message"]) == (400, message)

    at_gateway(SampledTexts(plain, "1"), agent)


def test_only_the_key_of_the_episode_opens_it_and_only_until_it_ends(plain):
    engine = SampledTexts(plain, "1")

    async def agent(client: AgentClient, _: Any) -> None:
        http, endpoint, body = client.http, client.endpoint, {"messages": [user("1+1")]}
        for wrong in ("", "Bearer ", "Bearer no", "Bearer \udcff", f"Basic {endpoint.key}", endpoint.key[:-1]):
            headers = {"Authorization": wrong}
            async with http.post(f"{endpoint.base_url}/chat/completions", json=body, headers=headers) as response:
                assert response.status == 401
        for url in (endpoint.url[:-1], endpoint.url.rpartition("/")[0], f"{endpoint.url}x", f"{endpoint.url}/.."):
            async with http.post(f"{url}/v1/models", json=body, headers=client.headers) as response:
                assert response.status == 401
        async with http.get(f"{endpoint.base_url}/models", headers={"X-Api-Key": endpoint.key}) as response:
            assert response.status == 200
        async with http.get(f"{endpoint.base_url}/none", headers=client.headers) as response:
            assert response.status == 404
        async with http.get(f"{endpoint.base_url}/models", headers={"Host": "evil.example"}) as response:
            assert response.status == 403
        await engine.gateway.end(endpoint)
        assert (await client.post(CHAT, body))[0] == 401

    at_gateway(engine, agent)
    assert not engine.groups


WRONG_VALUES: dict[str, tuple[Any, ...]] = {
    "n": (0, 10**9, "2", 1.5),
    "max_tokens": (-1, 0, 1e9),
    "max_output_tokens": ("7", 0, 2.5, True),
    "temperature": (-1, "hot"),
    "top_p": (7,),
    "stream": ("yes",),
    "stop": ([""], 5, list("abcdefghijklmnopqrstuvwxyz")),
    "stop_token_ids": ([10**9], [True]),
    "tools": ("x", [{}]),
    "tokens": ([], [-1], [0.5], "1"),
    "top_logprobs": (5,),
    "seed": (1 << 70,),
}
NESTED: Any = json.loads('{"a":' * 900 + "1" + "}" * 900)
HOSTILE: list[Any] = [
    *([], "x", None, 1, {}, {"messages": []}, {"messages": "x"}, {"messages": [1]}, {"messages": [{"role": "robot"}]}),
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
    {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"function": 3}]}]},
    {"messages": [user("1" * 100_000)]},
    {"messages": [user("Ä")]},
    {"messages": [{"role": "user", "content": NESTED}], "metadata": NESTED},
    *({"messages": [user("1")], key: value} for key, values in WRONG_VALUES.items() for value in values),
]


def test_hostile_requests_are_refused_with_a_reason_and_nothing_is_generated(plain):
    engine = SampledTexts(plain, "1")

    async def agent(client: AgentClient, session: Any) -> None:
        for body in HOSTILE:
            status, answer = await client.post(CHAT, body)
            assert status == 400 and answer["error"]["message"], (body, answer)
        for given in (3, [3], [{"type": "image"}], [{"type": "function_call"}], [{"role": "robot"}], NESTED):
            status, answer = await client.post("/v1/responses", {"input": given})
            assert status == 400 and answer["error"]["message"], given
        for route, prompt in (("/v1/responses", "input"), ("/v1/completions", "prompt")):
            for most in WRONG_VALUES["max_output_tokens"]:
                status, answer = await client.post(route, {prompt: "1", "max_output_tokens": most})
                assert status == 400 and answer["error"]["message"].startswith("max_output_tokens: "), (route, most)
        raw = [
            (b"{", {}, 400),
            (b'{"messages": ' + b"[" * 100_000, {}, 400),
            (b"\xff\xfe", {}, 400),
            (b"{}", {"Content-Type": "text/plain"}, 415),
            (b"{}", {"Content-Encoding": "gzip"}, 415),
        ]
        for content, headers, expected in raw:
            sent = {"Content-Type": "application/json", **client.headers, **headers}
            async with client.http.post(f"{client.endpoint.url}{CHAT}", data=content, headers=sent) as response:
                assert response.status == expected, (content[:20], await response.text())
        assert not engine.groups
        status, answer = await client.post(CHAT, {"messages": [user("1+1")]})
        assert status == 200

    (sample,) = at_gateway(engine, agent).trajectory(1.0)
    engine.check_exact([sample])


def test_a_prompt_without_room_has_the_code_that_agents_know_and_a_lost_server_is_no_fault_of_the_agent(plain):
    engine = SampledTexts(plain, GenerationError("no server"), "1")

    async def agent(client: AgentClient, session: Any) -> None:
        status, answer = await client.post(CHAT, {"messages": [user("1" * 5000)]})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        status, answer = await client.post(CHAT, {"messages": [user("1")]})
        assert status == 502 and isinstance(session.fault, GenerationError)
        assert (await client.post(CHAT, {"messages": [user("1")]}))[0] == 200

    assert at_gateway(engine, agent).fault is None


def test_a_failed_call_is_made_good_by_a_repetition_of_it_alone(plain):
    """Not by an equal call that was open beside it."""
    engine = SampledTexts(plain, GenerationError("no server"), "1", GenerationError("no server"), "1")
    body = {"messages": [user("1")]}

    async def agent(client: AgentClient, session: Any) -> None:
        engine.gate.clear()
        calls = [asyncio.create_task(client.post(CHAT, body)) for _ in range(2)]
        while len(engine.groups) < 2:
            await asyncio.sleep(0.001)
        engine.gate.set()
        assert sorted(status for status, _ in await asyncio.gather(*calls)) == [200, 502]
        for repeated, is_made_good in ((502, False), (200, True)):
            assert isinstance(session.fault, GenerationError)
            assert (await client.post(CHAT, body))[0] == repeated
            assert (session.fault is None) is is_made_good

    at_gateway(engine, agent)
