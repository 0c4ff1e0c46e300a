"""The real client of Anthropic at the gateway: what it gets, and what is trained on."""

import asyncio
from typing import Any

import aiohttp
import anthropic
import pytest

from areal_like.data.tokenizer import TextTokenizer
from areal_like.process.frames import pack
from areal_like.rollout.episodes.gateway.call_sampling import REQUEST
from areal_like.rollout.episodes.gateway.gateway import Endpoint
from areal_like.rollout.episodes.gateway.session import SessionRules
from areal_like.rollout.episodes.generation_client import GenerationError
from areal_like.rollout.episodes.tools.call_format import CallFormat
from areal_like.rollout.trajectory import pack_group
from tests.data.test_chat_template_real import folder_of
from tests.support.agents import AgentClient, SampledTexts, open_session, user

ADD: Any = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"carry":false, "numbers": [1,2]}}\n</tool_call>'


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return TextTokenizer(folder_of("qwen2_5", tmp_path_factory.mktemp("messages") / "qwen"))


def at_gateway(engine: SampledTexts, agent: Any, rules: SessionRules | None = None) -> list[Any]:
    async def run() -> Any:
        async with open_session(engine, rules) as (session, endpoint):
            await agent(endpoint, session)
        return session.trajectory(1.0) if engine.log else []

    samples: list[Any] = asyncio.run(run())
    engine.check_exact(samples)
    assert sum(int(each.loss_mask.sum()) for each in samples) == sum(len(each["token_ids"]) for _, each in engine.log)
    return samples


def client_of(endpoint: Endpoint, **more: Any) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=endpoint.url, api_key=endpoint.key, **more)


@pytest.mark.parametrize("streams", [False, True])
def test_the_anthropic_client_calls_a_tool_and_its_ids_are_those_sampled(qwen, streams):
    engine = SampledTexts(qwen, f"let me see\n{CALL}\n{CALL}", "It is 3. END", "4", end="<|im_end|>")

    async def agent(endpoint: Endpoint, _: Any) -> None:
        async with client_of(endpoint) as policy:

            async def ask(*messages: Any, **more: Any) -> Any:
                given: Any = {"model": "any", "max_tokens": 500, "messages": messages, "tools": [ADD], **more}
                given |= {"system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]}
                if not streams:
                    return await policy.messages.create(**given)
                async with policy.messages.stream(**given) as stream:
                    text = "".join([part async for part in stream.text_stream])
                    final = await stream.get_final_message()
                assert text == "".join(block.text for block in final.content if block.type == "text")
                return final

            question: Any = user("1+2?")
            first = await ask(question)
            text, one, two = first.content
            assert (text.text, first.stop_reason, one.name) == ("let me see", "tool_use", "add")
            assert one.input == two.input == {"carry": False, "numbers": [1, 2]} and one.id != two.id
            assert first.usage.output_tokens == len(engine.log[0][1]["token_ids"])
            content = [block.model_dump(include={"type", "text", "id", "name", "input"}) for block in first.content]
            called = {"role": "assistant", "content": content}
            results = [{"type": "tool_result", "tool_use_id": each.id, "content": "3"} for each in (one, two)]
            seen: list[Any] = [question, called, user([*results, {"type": "text", "text": "and now?"}])]  # type: ignore[arg-type]
            engine.end = ""
            second = await ask(*seen, stop_sequences=["END"])
            engine.end = "<|im_end|>"
            assert (second.content[0].text, second.stop_reason) == ("It is 3. ", "stop_sequence")
            assert second.stop_sequence == "END" and second.usage.input_tokens == len(engine.log[1][0])
            third = await ask(question, called, user([{"type": "tool_result", "tool_use_id": one.id}]))  # type: ignore[arg-type]
            assert (third.content[0].text, third.stop_reason) == ("4", "end_turn")
            counted = await policy.messages.count_tokens(
                model="any", messages=[question], tools=[ADD], system="be brief"
            )
            assert counted.input_tokens == len(engine.log[0][0])

    samples = at_gateway(engine, agent)
    assert len(samples) == 2, "the third call is a branch of the first"
    metrics = samples[0].metrics
    assert (metrics["turns"], metrics["tool_calls"], metrics["template_breaks"]) == (3, 2, 0)
    assert [each["role"] for each in samples[0].messages] == [
        *("system", "user", "assistant", "tool", "tool", "user", "assistant")
    ]


def test_a_call_whose_arguments_are_no_object_is_continued_and_one_call_at_a_time_may_be_asked_for(qwen, caplog):
    odd = '<tool_call>\n{"name": "add", "arguments": [1, 2]}\n</tool_call>'
    engine = SampledTexts(qwen, odd, "3", end="<|im_end|>")
    one_at_a_time = {"type": "auto", "disable_parallel_tool_use": True}

    async def agent(endpoint: Endpoint, _: Any) -> None:
        async with client_of(endpoint) as policy:
            given: Any = {"model": "any", "max_tokens": 500, "tools": [ADD], "tool_choice": one_at_a_time}
            asked: list[Any] = [user("1+2?")]
            first = await policy.messages.create(messages=asked, **given)
            call: Any = first.content[0]
            assert call.input == {"arguments": [1, 2]}
            block = call.model_dump(include={"type", "id", "name", "input"})
            result = {"type": "tool_result", "tool_use_id": call.id, "content": "3"}
            seen = [*asked, {"role": "assistant", "content": [block]}, user([result])]  # type: ignore[arg-type]
            await policy.messages.create(messages=seen, **given)

    (sample,) = at_gateway(engine, agent, SessionRules(sampling=REQUEST))
    assert (sample.metrics["turns"], sample.metrics["template_breaks"]) == (2, 0)
    assert caplog.text.count("parallel_tool_calls=False, which is ignored") == 1


@pytest.mark.parametrize("streams", [False, True])
def test_a_call_with_numbers_and_nesting_that_no_parser_of_json_need_take_is_answered_and_continued(qwen, streams):
    """Keys that are no texts, a tuple, and halves of characters, which are no call, as well."""
    deep = "[" * 90 + "]" * 90
    call = f"[add(a={10**40}, b={deep}, c=(1, {{2: 3}}))]"
    engine = SampledTexts(qwen, call, "[add(a='\\ud800')]", "3", end="<|im_end|>")
    rules = SessionRules(call_format=CallFormat(name="python"))

    async def agent(endpoint: Endpoint, _: Any) -> None:
        async with client_of(endpoint, max_retries=0) as policy:
            given: Any = {"model": "any", "max_tokens": 500, "tools": [ADD]}

            async def ask(seen: Any) -> Any:
                if not streams:
                    return await policy.messages.create(messages=seen, **given)
                async with policy.messages.stream(messages=seen, **given) as stream:
                    return await stream.get_final_message()

            seen: list[Any] = [user("1+2?")]
            call = (await ask(seen)).content[0]
            assert call.input["a"] == str(10**40) and call.input["c"] == [1, {"2": 3}]
            block = call.model_dump(include={"type", "id", "name", "input"})
            result = {"type": "tool_result", "tool_use_id": call.id, "content": "3"}
            seen += [{"role": "assistant", "content": [block]}, user([result])]  # type: ignore[arg-type]
            second = await ask(seen)
            assert second.content[0].type == "text"
            await ask([*seen, {"role": "assistant", "content": second.content[0].text}, user("again")])

    (sample,) = at_gateway(engine, agent, rules)
    assert (sample.metrics["turns"], sample.metrics["template_breaks"]) == (3, 0)
    assert (sample.metrics["tool_calls"], sample.metrics["tool_errors"]) == (2, 1)
    pack({"facts": pack_group([sample])[0]})


def test_the_anthropic_clients_own_retries_leave_no_orphan_and_give_no_answer_twice(qwen):
    engine = SampledTexts(qwen, "1", "2", GenerationError("no server"), "3", end="<|im_end|>")

    async def agent(endpoint: Endpoint, session: Any) -> None:
        async def ask(policy: anthropic.AsyncAnthropic) -> str:
            answer = await policy.messages.create(
                model="any", max_tokens=5, messages=[{"role": "user", "content": "1"}]
            )
            assert answer.content[0].type == "text"
            return answer.content[0].text

        engine.gate.clear()
        async with client_of(endpoint, timeout=0.4, max_retries=8) as policy:
            asked = asyncio.create_task(ask(policy))
            while not any(len(each.requests) > 1 for each in session.pending._answers):
                await asyncio.sleep(0.001)
            engine.gate.set()
            assert await asked == "1"
        async with client_of(endpoint) as policy:
            assert [await ask(policy), await ask(policy)] == ["2", "3"]

    samples = at_gateway(engine, agent)
    assert len(samples) == 3 and samples[0].metrics["undelivered_calls"] == 0


def test_requests_that_no_template_can_show_are_refused_with_a_reason(qwen):
    engine = SampledTexts(qwen, "1", end="<|im_end|>")
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    contents: list[Any] = [None, 3, [3], [{}], [image], [{"type": "text", "text": 3}], [{"type": "tool_use"}]]
    stops: list[Any] = [5, "x", [""], [5], ["x" * 100_000]]
    roles: list[Any] = [[], {}, 5]
    tools: list[Any] = ["x", [3], [{}], [{"type": "bash_20250124"}]]
    wrong: list[Any] = [
        *({"messages": given} for given in (None, [], "x", [3], [{"role": "system", "content": "x"}])),
        *({"messages": [{"role": role, "content": each}]} for role in ("user", "assistant") for each in contents),
        *({"messages": [{"role": each, "content": "x"}]} for each in roles),
        {"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "a"}]}]},
        *({"messages": [user("1")], "tools": each} for each in tools),
        *({"messages": [user("1")], "stop_sequences": each} for each in stops),
        {"messages": [user("1")], "system": 3},
        {"messages": [user("1" * 100_000)]},
    ]

    async def agent(endpoint: Endpoint, _: Any) -> None:
        async with aiohttp.ClientSession() as http:
            client = AgentClient(endpoint, http)
            for body in wrong:
                status, answer = await client.post("/v1/messages", body)
                assert status == 400 and answer["type"] == "error" and answer["error"]["message"], body
        async with client_of(endpoint) as policy:
            with pytest.raises(anthropic.BadRequestError, match="context_length_exceeded"):
                await policy.messages.create(
                    model="any", max_tokens=5, messages=[{"role": "user", "content": "1" * 5000}]
                )
        assert not engine.groups

    assert at_gateway(engine, agent) == []
