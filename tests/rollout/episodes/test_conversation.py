"""Conversations: what is trained on is exactly what was sampled, whatever a chat template does."""

import asyncio
import json
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_like.config.load import load
from areal_like.data.conversation_text import PlainText, TemplateText
from areal_like.data.tokenizer import TextTokenizer
from areal_like.models import model_folder
from areal_like.rollout.episodes.conversation import BRANCHING, Conversation, ConversationRules, discounted
from areal_like.rollout.episodes.main import conversation_rules
from areal_like.rollout.episodes.rewards.base import Reward
from areal_like.rollout.episodes.sample import RowError, Sample
from tests.data.test_chat_template_real import NAMED, WITH_TOOLS, folder_of
from tests.support.chat_models import BARE, PLAIN, SHORTENS, chat_tokenizer

TEMPLATES = (*NAMED, "plain", "shortens", "bare")
TOOLS = [{"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}]
ENDS = {"gptoss": "<|end|>", "deepseek_r1_distill": NAMED["deepseek_r1_distill"][1], "glm4moe": "<|user|>"}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    root = tmp_path_factory.mktemp("tokenizers")
    ours = {"plain": PLAIN, "shortens": SHORTENS, "bare": BARE}

    @cache
    def tokenizer(name: str) -> TextTokenizer:
        if name in ours:
            return chat_tokenizer(root / name, ours[name])
        return TextTokenizer(folder_of(name, root / name))

    return tokenizer


class Model:
    """Answers with the given ids, and keeps what it was given and gave."""

    def __init__(self, *answers: tuple[list[int], str]) -> None:
        self.answers, self.calls = list(answers), list[tuple[list[int], Sample]]()

    async def __call__(self, prompt_ids: Any, turn: int, sampling: dict[str, Any]) -> Sample:
        assert turn == len(self.calls)
        if "fails" in sampling:
            raise TypeError("no such parameter")
        ids, finish = self.answers[turn]
        sample = Sample(ids, [-0.1 * (turn + 1)] * len(ids), [turn] * len(ids), finish)
        self.calls.append((list(prompt_ids), sample))
        return sample


def conversation(tokenizer: TextTokenizer, model: Model, prompt: Any = None, tools: Any = None, **rules: Any) -> Any:
    text = PlainText(tokenizer) if isinstance(prompt, str) else TemplateText(tokenizer, tools)
    messages = [{"role": "user", "content": prompt if isinstance(prompt, str) else "1+1"}]
    encode = lambda text: tokenizer.encode(text, special=False)  # noqa: E731
    return Conversation(0, messages, text, model, encode, 10_000, ConversationRules(**rules))


def check_exact(model: Model, samples: list[Any]) -> None:
    """Every answer is in the loss of one sample, after exactly the ids that the model was given, with the sampler's
    facts; and nothing else is."""
    found = []
    for sample in samples:
        mask, ids = sample.loss_mask.astype(bool), sample.token_ids.tolist()
        assert ((sample.versions >= 0) == mask).all() and (sample.logprobs[~mask] == 0).all()
        assert sample.problem() is None
        for number, (prompt, answer) in enumerate(model.calls):
            span = slice(len(prompt), len(prompt) + len(answer.token_ids))
            if ids[: span.stop] == prompt + answer.token_ids and (sample.versions[span] == number).all():
                assert mask[span].all()
                np.testing.assert_allclose(sample.logprobs[span], answer.logprobs, rtol=1e-6)
                found.append(number)
        assert mask.sum() == sum(
            len(model.calls[number][1].token_ids) for number in set(sample.versions[mask].tolist())
        )
    assert sorted(found) == list(range(len(model.calls)))


async def hold(chat: Any, observed: list[Any]) -> None:
    await chat.generate()
    for messages in observed:
        chat.observe(*messages)
        await chat.generate()


@settings(max_examples=5, deadline=None)
@given(st.data())
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("strategy", ["interleaved", BRANCHING])
def test_ids_trained_on_are_those_sampled(tokenizers, template, strategy, data):
    tokenizer = tokenizers(template)
    signs = "ab1+=" if template in ("plain", "shortens", "bare") else "ab é\n1+=<>/"
    words = st.text(signs, max_size=8)
    end = [] if template == "bare" else [tokenizer.eos_id]
    answers, observed = [], []
    for _ in range(data.draw(st.integers(1, 4))):
        ids = data.draw(st.lists(st.sampled_from(tokenizer.encode(signs, special=False)), min_size=1, max_size=8))
        cut = data.draw(st.booleans())
        answers.append((ids if cut else ids + end, "length" if cut else "stop"))
        observed.append([{"role": "user", "content": data.draw(words) + "1"}])
    model = Model(*answers)
    chat = conversation(tokenizer, model, trajectory_strategy=strategy)
    asyncio.run(hold(chat, observed[1:]))
    samples = chat.trajectory(Reward(0.5, {"score": 1.0}))
    check_exact(model, samples)
    assert {sample.reward for sample in samples} == {0.5} and {sample.conversation for sample in samples} == {0}
    assert len(samples) == (len(answers) if strategy == BRANCHING else 1 + chat.breaks)
    assert {(sample.metrics["turns"], sample.metrics["template_breaks"]) for sample in samples} == {
        (len(answers), chat.breaks)
    }
    assert chat.messages[-1]["role"] == "assistant" and len(chat.messages) == 2 * len(answers)


def answer_of(tokenizer: TextTokenizer, text: str, end: str | None) -> tuple[list[int], str]:
    return tokenizer.encode(text + (end or ""), special=False), "stop" if end else "length"


@pytest.mark.parametrize("template", TEMPLATES)
def test_breaks_are_only_where_the_template_rewrites(tokenizers, template):
    """A plain answer stays as it is in every template that ends a turn with the token that ended the answer."""
    tokenizer = tokenizers(template)
    end = NAMED[template][1] if template in NAMED else "<eos>"
    model = Model(*[answer_of(tokenizer, "12", end)] * 3)
    chat = conversation(tokenizer, model)
    asyncio.run(hold(chat, [["1+2"], ["2+2"]]))
    (second, _), (third, _) = model.calls[1:]
    for (prompt, answer), following in zip(model.calls, [second, third], strict=False):
        continues = following[: len(prompt) + 3] == prompt + answer.token_ids
        text = tokenizer.decode(following, skip_special=False)
        before = tokenizer.decode(prompt + answer.token_ids, skip_special=False)
        assert continues == text.startswith(before)
    rendered = tokenizer.chat.render(chat.messages[:-1], add_generation_prompt=True)
    assert tokenizer.decode(third, skip_special=False) == rendered
    if template in ("qwen2_5", "qwen3", "phi3_5", "plain", "shortens"):
        assert chat.breaks == 0 and len(chat.trajectory(1.0)) == 1


@pytest.mark.parametrize("template", ["qwen3", "shortens"])
def test_a_template_that_removes_thoughts_breaks_once_per_removal(tokenizers, template, caplog):
    tokenizer = tokenizers(template)
    thought = "<think>\n1+1\n</think>\n\n2" if template == "qwen3" else "[1+1]2"
    model = Model(*[answer_of(tokenizer, thought, NAMED.get(template, (0, "<eos>"))[1])] * 3)
    chat = conversation(tokenizer, model)
    asyncio.run(hold(chat, [["1+2"], ["2+2"]]))
    samples = chat.trajectory(1.0)
    assert chat.breaks == 2 and len(samples) == 3
    check_exact(model, samples)
    assert "1+1" not in tokenizer.decode(model.calls[2][0][len(model.calls[0][0]) :])
    assert caplog.text.count("the chat template rewrites earlier turns") == 1 and "in place of" in caplog.text


def test_thoughts_between_calls_of_tools_stay_with_the_template_of_qwen3(tokenizers):
    tokenizer = tokenizers("qwen3")
    call = '<think>\nadd\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
    model = Model(*[answer_of(tokenizer, call, "<|im_end|>")] * 3)
    chat = conversation(tokenizer, model, tools=TOOLS)
    asyncio.run(hold(chat, [[{"role": "tool", "name": "add", "content": "2"}]] * 2))
    assert chat.breaks == 0
    check_exact(model, chat.trajectory(1.0))


@pytest.mark.parametrize("template", WITH_TOOLS)
def test_results_of_tools_follow_in_every_template_that_knows_them(tokenizers, template):
    tokenizer = tokenizers(template)
    model = Model(*[answer_of(tokenizer, "12", NAMED[template][1])] * 2)
    chat = conversation(tokenizer, model, tools=TOOLS)
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {}}}]}
    result = {"role": "tool", "name": "add", "content": "the sum"}
    observed = [call, result] if template == "gptoss" else [result]
    asyncio.run(hold(chat, [observed]))
    check_exact(model, chat.trajectory(1.0))
    assert "the sum" in tokenizer.decode(model.calls[1][0], skip_special=False)


def test_ids_that_the_tokenizer_would_choose_otherwise_stay(tmp_path):
    """`ab` as two tokens where the tokenizer has one, and a border between answer and message that it would merge."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {"a": 0, "b": 1, "ab": 2, ":": 3}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({}))
    joins = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}:{% endif %}"
    (tmp_path / "chat_template.jinja").write_text(joins.replace(":", ""))
    ours = TextTokenizer(tmp_path)
    model = Model(([0, 1, 0], "length"), ([2], "length"))
    chat = Conversation(
        *(0, [{"role": "user", "content": ":"}], TemplateText(ours), model),
        *(lambda text: ours.encode(text, special=False), 100, ConversationRules()),
    )
    asyncio.run(hold(chat, [["b:"]]))
    assert ours.encode(":abab:", special=False) == [3, 2, 2, 3]
    assert model.calls[1][0] == [3, 0, 1, 0, 1, 3] and chat.breaks == 0
    (sample,) = chat.trajectory(1.0)
    assert sample.loss_mask.tolist() == [0, 1, 1, 1, 0, 0, 1]


def tiny() -> TextTokenizer:
    return TextTokenizer(model_folder("builtin:tiny-addition"))


def configured(*overrides: str) -> dict[str, Any]:
    """The rules of a run with these overrides."""
    config = load("grpo.yaml", ["rollout.backend=embedded", *overrides]).config
    return {each.name: getattr(conversation_rules(config, Path()), each.name) for each in fields(ConversationRules)}


@pytest.mark.shows("rollout.trajectory_strategy")
@pytest.mark.parametrize(("strategy", "num_samples"), [("interleaved", 1), (BRANCHING, 3)])
def test_the_strategy_decides_how_many_sequences_a_conversation_is(strategy, num_samples):
    tokenizer = tiny()
    model = Model(*[(tokenizer.encode("12", special=False), "length")] * 3)
    rules = configured(f"rollout.trajectory_strategy={strategy}")
    assert rules["context_length"] == 64
    chat = conversation(tokenizer, model, "1+1=", **rules)
    asyncio.run(hold(chat, [["no"], ["no"]]))
    assert len(chat.trajectory(1.0)) == num_samples
    check_exact(model, chat.trajectory(1.0))


def test_the_context_of_a_service_is_its_own_affair():
    """Its tokens are unknown here: characters are counted in their place."""
    service = ("total_train_steps=0", "rollout.server_type=openai", "rollout.server_addresses=['http://there/v1']")
    assert configured()["context_length"] == 64 and configured(*service)["context_length"] is None


@pytest.mark.shows("rollout.mask_env_responses")
@pytest.mark.parametrize("masked", [True, False])
def test_observed_tokens_are_in_the_loss_if_they_are_not_masked(masked):
    tokenizer = tiny()
    model = Model((tokenizer.encode("12", special=False), "length"), (tokenizer.encode("3", special=False), "length"))
    chat = conversation(tokenizer, model, "1+1=", **configured(f"rollout.mask_env_responses={masked}"))
    asyncio.run(hold(chat, [["no"]]))
    (sample,) = chat.trajectory(1.0)
    start = len(model.calls[0][0])
    assert sample.loss_mask.tolist() == [0] * start + [1, 1] + [int(not masked)] * 2 + [1]
    assert sample.observed_in_loss == (0 if masked else 2)
    assert (sample.problem() is None) == masked and sample.problem(may_train_observed=True) is None
    (_, second) = chat.trajectory(1.0, turn_rewards=[0.0, 0.0])
    assert second.loss_mask.tolist() == [0] * (start + 2) + [int(not masked)] * 2 + [1]


def test_plain_texts_follow_each_other_and_an_answer_can_be_continued():
    tokenizer = tiny()
    model = Model(*[(tokenizer.encode(text, special=False), "length") for text in ("12", "34", "5")])
    chat = conversation(tokenizer, model, "1+1=")

    async def talk():
        await chat.generate()
        chat.insert("[46]")
        await chat.generate()
        chat.observe("no", {"role": "tool", "content": "="})
        await chat.generate()

    asyncio.run(talk())
    assert tokenizer.decode(chat.token_ids) == "1+1=12[46]34no=5"
    assert [message["content"] for message in chat.messages] == ["1+1=", "12[46]34", "no", "=", "5"]
    (sample,) = chat.trajectory(0.0)
    check_exact(model, [sample])
    assert sample.metrics["turns"] == 2
    branches = chat.trajectory(None, turn_rewards=[0.0, 1.0])
    check_exact(model, branches)
    assert [tokenizer.decode(each.token_ids.tolist()) for each in branches] == ["1+1=12[46]34", "1+1=12[46]34no=5"]


def test_room_counts_what_is_observed_and_a_prompt_without_room_is_refused(tokenizers):
    tokenizer = tokenizers("plain")
    model = Model(*[answer_of(tokenizer, "2", "<eos>")] * 2)
    chat = conversation(tokenizer, model, context_length=60)
    before = chat.room
    asyncio.run(chat.generate())
    chat.observe("1")
    first = chat.room
    chat.observe("12")
    assert before == 60 - len(model.calls[0][0])
    assert first - chat.room == len("<user> 12<eos>") - len("<eos>") + 1 and chat.room > 0
    with pytest.raises(RowError, match="cannot be tokenized"):
        chat.observe("\u00c4")
        _ = chat.room


def test_rewards_of_turns_make_a_sample_of_each_turn():
    tokenizer = tiny()
    model = Model(*[(tokenizer.encode(text, special=False), "length") for text in ("1", "2", "3")])
    chat = conversation(tokenizer, model, "1+1=")
    asyncio.run(hold(chat, [["="], ["="]]))
    samples = chat.trajectory(Reward(1.0, {"score": 1.0}), turn_rewards=[0.5, 0.0, 0.25], discount=0.5, tools=2)
    assert [sample.reward for sample in samples] == [0.5 + 0.5 * 0.625, 0.625, 1.25]
    assert all(sample.rewards == {"score": 1.0} and sample.metrics["tools"] == 2 for sample in samples)
    check_exact(model, samples)
    assert discounted([1.0], 2.0, 0.1) == [3.0]
    with pytest.raises(ValueError, match="2 turn_rewards for 3 answers"):
        chat.trajectory(1.0, turn_rewards=[1.0, 2.0])
    assert [sample.reward for sample in chat.trajectory(None, turn_rewards=[1.0, 2.0, 3.0])] == [None] * 3


def test_a_conversation_without_an_answer_has_no_trajectory():
    chat = conversation(tiny(), Model(), "1+1=")
    with pytest.raises(ValueError, match="has no answer"):
        chat.trajectory(1.0)
    with pytest.raises(ValueError, match="there is none"):
        chat.insert("=")


def test_answers_of_gpt_oss_become_messages_that_its_template_takes(tokenizers):
    tokenizer = tokenizers("gptoss")
    raw = "<|channel|>analysis<|message|>one and one<|end|><|start|>assistant<|channel|>final<|message|>2"
    model = Model(*[answer_of(tokenizer, raw, "<|return|>")] * 2)
    chat = conversation(tokenizer, model)
    asyncio.run(hold(chat, [["2+2"]]))
    assert chat.messages[1] == {"role": "assistant", "content": "2", "thinking": "one and one"}
    assert chat.breaks == 1
    check_exact(model, chat.trajectory(1.0))


@pytest.mark.parametrize("template", ["plain", "shortens"])
def test_a_call_that_failed_can_be_repeated(tokenizers, template):
    tokenizer = tokenizers(template)
    model = Model(*[answer_of(tokenizer, "[1]2", "<eos>")] * 2)
    chat = conversation(tokenizer, model)

    async def talk():
        await chat.generate()
        chat.observe("1")
        with pytest.raises(TypeError):
            await chat.generate(fails=True)
        await chat.generate()

    asyncio.run(talk())
    assert len(chat.turns) == 2 and chat.breaks == (template == "shortens")
    check_exact(model, chat.trajectory(1.0))
