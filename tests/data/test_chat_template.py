"""Chat templates render as in transformers, and locate the assistant's messages."""

import json
from datetime import datetime

import pytest

from areal_like.data.chat_template import ChatTemplate
from areal_like.data.tokenizer import TextTokenizer
from tests.support.chat_models import (
    AGAIN,
    ANSWER,
    BARE,
    LAST,
    MARKED,
    PLAIN,
    SHORTENS,
    TALK,
    USER,
    chat_folder,
    chat_tokenizer,
    in_config,
)

EVERYTHING = """\
{%- if messages[0].role == 'system' %}
    {{- '[' + messages[0].content + ']' }}
    {%- set messages = messages[1:] %}
{%- endif %}
{% for m in messages %}
    {% if m.role == 'skip' %}{% continue %}{% endif %}
    {{- eos_token if loop.first else ' ' }}{{ m.role }}: {{ m.content | trim }} {{ m | tojson }}
    {{- strftime_now('%y') }}
{%- endfor %}
{% if tools %}{{ tools | tojson(indent=1) | replace('\\n', '') }}{% endif %}
{{- bos_token }}{% if add_generation_prompt %}{{ ' ask' }}{% endif %}
"""
"""Blocks, trimming, loop controls, the filters and functions that templates are given."""


@pytest.mark.parametrize("template", [PLAIN, MARKED, SHORTENS, BARE, EVERYTHING])
@pytest.mark.parametrize("asks", [False, True])
def test_rendering_equals_transformers(tmp_path, template, asks):
    transformers = pytest.importorskip("transformers")
    folder = chat_folder(tmp_path / "m", template)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), TextTokenizer(folder)
    tools = [{"name": "add", "of": ["<a>", "&"]}]
    for messages in (
        TALK,
        TALK[:1],
        [{"role": "system", "content": "be short"}, *TALK, {"role": "skip", "content": ""}],
    ):
        expected = theirs.apply_chat_template(messages, tools, tokenize=False, add_generation_prompt=asks)
        assert (
            ours.chat.render(messages, asks, tools) == ours.chat.render(messages, asks, json.dumps(tools)) == expected
        )


def test_arguments_of_the_template_are_variables_in_it(tmp_path):
    template = "{% if enable_thinking is defined and enable_thinking is false %}[]{% endif %}" + PLAIN
    folder = chat_folder(tmp_path / "m", template)
    with_args = TextTokenizer(folder, {"enable_thinking": False, "messages": "taken", "unused": 1})
    assert with_args.chat.render(TALK[:1]) == "[]" + TextTokenizer(folder).chat.render(TALK[:1])
    assert with_args.chat.spans(TALK)[0][0].text.startswith("[]")


def test_a_prompt_of_messages_has_the_tokens_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = chat_folder(tmp_path / "m")
    expected = transformers.AutoTokenizer.from_pretrained(folder).apply_chat_template(
        TALK[:3], add_generation_prompt=True
    )
    assert TextTokenizer(folder).encode_prompt(TALK[:3]) == expected["input_ids"]
    assert TextTokenizer(folder).encode_prompt("1+1=") == TextTokenizer(folder).encode("1+1=")


@pytest.mark.parametrize("several", [False, True])
def test_the_template_may_be_in_the_tokenizer_configuration(tmp_path, several):
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": PLAIN}]
    folder = in_config(chat_folder(tmp_path / "m"), named if several else PLAIN)
    assert TextTokenizer(folder).chat.render([USER]) == "<user> 1+1<eos>"


def test_without_a_template_messages_are_refused_with_a_remedy(tmp_path):
    folder = in_config(chat_folder(tmp_path / "m"), None)
    with pytest.raises(ValueError, match=r"^tokenizer_path: .* has no chat template .*; use the tokenizer of a chat"):
        TextTokenizer(folder).encode_prompt([USER])


def test_invalid_templates_and_messages_are_refused_with_the_reason(tmp_path):
    with pytest.raises(ValueError, match=r"^tokenizer_path: .*chat_template\.jinja is not a chat template: Expected"):
        chat_tokenizer(tmp_path / "a", "{% if %}").encode_prompt([USER])
    refusing = chat_tokenizer(tmp_path / "b", "{{ raise_exception('no ' + messages[0].role) }}")
    with pytest.raises(ValueError, match=r"^/.*/chat_template\.jinja cannot render .*1\+1.*: no user"):
        refusing.encode_prompt([USER])


def test_an_unsafe_template_is_refused(tmp_path):
    harmful = "{{ messages.__class__.__mro__ }}"
    with pytest.raises(ValueError, match="unsafe"):
        chat_tokenizer(tmp_path / "m", harmful).encode_prompt([USER])


def parts(template: str, messages: list[dict[str, str]]) -> tuple[list[str], int]:
    """The answers, in the order in which they stand; all parts together are the whole text."""
    chat = ChatTemplate(template, {"eos_token": "<eos>"}, "here")
    actual, hidden = chat.spans(messages)
    assert "".join(part.text for part in actual) == chat.render(messages)
    return [part.text for part in actual if part.is_answer], hidden


@pytest.mark.parametrize("template", [PLAIN, MARKED])
def test_answers_are_separated_from_the_rest(template):
    assert parts(template, TALK) == (["2<eos>", "4<eos>"], 0)
    assert parts(template, [*TALK, AGAIN]) == (["2<eos>", "4<eos>"], 0)
    assert parts(template, [USER]) == ([], 0)


def test_an_answer_that_is_shortened_later_is_not_trained_on():
    with_reasoning = {"role": "assistant", "content": "[one and one]2"}
    assert parts(SHORTENS, [USER, with_reasoning]) == (["[one and one]2<eos>"], 0)
    assert parts(SHORTENS, [USER, with_reasoning, AGAIN, LAST]) == (["4<eos>"], 1)
    assert parts(SHORTENS, TALK) == (["2<eos>", "4<eos>"], 0)


def test_an_answer_begins_at_the_generation_prompt():
    opens = PLAIN.replace("<assistant> {% endif %}", "<assistant> [think]{% endif %}")
    assert parts(opens, [USER, {"role": "assistant", "content": "[think]so[/think]2"}]) == (["so[/think]2<eos>"], 0)
    assert parts(opens, [USER, ANSWER]) == (["2<eos>"], 0)  # there is no generation prompt


def test_the_date_is_the_current_date():
    assert ChatTemplate("{{ strftime_now('%Y') }}", {}, "here").render([USER]) == str(datetime.now().year)
