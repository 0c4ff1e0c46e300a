"""Chat templates of real models give the text and tokens of transformers."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from areal_like.config.load import load
from areal_like.data.tokenizer import TextTokenizer

GSM8K = Path(__file__).parents[2] / "experiments" / "gsm8k.yaml"
TEMPLATES = Path(__file__).parent / "chat_templates"
DEEPSEEK = ("<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>")
NAMED = {
    "qwen2_5": (None, "<|im_end|>"),
    "qwen3": (None, "<|im_end|>"),
    "qwen3_6": (None, "<|im_end|>"),
    "deepseekv3": DEEPSEEK,
    "deepseek_r1_distill": DEEPSEEK,
    "glm4moe": (None, "<|endoftext|>"),
    "gptoss": ("<|startoftext|>", "<|return|>"),
    "phi3_5": ("<s>", "<|end|>"),
}
"""The first token and the last one that each model's tokenizer names."""
WITH_TOOLS = ("qwen2_5", "qwen3", "qwen3_6", "glm4moe", "gptoss")
"""Those whose templates know tools."""

SYSTEM = {"role": "system", "content": "Answer briefly, in <one> line & no more."}
ASKED = {"role": "user", "content": "  Wie spät ist es in Ōsaka? 🙂\n"}
ANSWERED = {"role": "assistant", "content": "<think>\nnine hours ahead\n</think>\n\nHalf past nine."}
AGAIN = {"role": "user", "content": "And 2 + 2?"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2.5, "note": "<&> 'é'"}}}
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "name": "add", "content": '{"sum": 4.5}'}
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers <exactly> & quickly.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "number", "description": "the first"},
                "b": {"type": "number", "description": "the second", "default": 0.5},
                "note": {"type": ["string", "null"], "enum": ["é", "ß"]},
            },
            "required": ["a"],
        },
    },
}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one question": [ASKED],
    "with a system message": [SYSTEM, ASKED],
    "several turns": [SYSTEM, ASKED, ANSWERED, AGAIN],
    "ended": [ASKED, ANSWERED],
}


def folder_of(model: str, root: Path) -> Path:
    """A tokenizer of single bytes that has the model's template, and names the tokens that the model's own does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    bos, eos = NAMED[model]
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={sign: place for place, sign in enumerate(signs)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    named = {name: token for name, token in {"bos_token": bos, "eos_token": eos}.items() if token}
    tokenizer.add_special_tokens(list(named.values()))
    root.mkdir()
    tokenizer.save(str(root / "tokenizer.json"))
    described = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    (root / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")
    template = (TEMPLATES / f"{model}.jinja").read_text(encoding="utf-8")
    (root / "chat_template.jinja").write_text(template, encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A model's tokenizer, as transformers has it and as we do."""
    from transformers import AutoTokenizer

    @cache
    def pair(model: str) -> tuple[Any, TextTokenizer]:
        folder = folder_of(model, tmp_path_factory.mktemp("tokenizers") / model)
        return AutoTokenizer.from_pretrained(folder), TextTokenizer(folder)

    return pair


def check(both: Any, model: str, messages: list[dict[str, Any]], tools: Any = None) -> None:
    theirs, ours = both(model)
    for asks in (False, True):
        expected = theirs.apply_chat_template(messages, tools, tokenize=False, add_generation_prompt=asks)
        assert ours.chat.render(messages, asks, tools) == expected
        assert expected.strip()
    ids = theirs.apply_chat_template(messages, tools, add_generation_prompt=True)["input_ids"]
    assert ours.encode_prompt(messages, tools) == ids
    assert ours.decode(ids, skip_special=False) == expected


@pytest.mark.parametrize("model", NAMED)
@pytest.mark.parametrize("what", CONVERSATIONS)
def test_a_conversation_is_rendered_like_transformers(both, model, what):
    check(both, model, CONVERSATIONS[what])


@pytest.mark.parametrize("model", WITH_TOOLS)
def test_tools_and_their_calls_are_rendered_like_transformers(both, model):
    check(both, model, [SYSTEM, ASKED], [TOOL])
    check(both, model, [ASKED, CALLS, RESULT], [TOOL])
    check(both, model, [SYSTEM, ASKED, CALLS, RESULT, ANSWERED, AGAIN], [TOOL])


def test_messages_refused_by_a_template_are_refused(both):
    from jinja2 import TemplateError

    theirs, ours = both("qwen3_6")
    with pytest.raises(TemplateError) as expected:
        theirs.apply_chat_template([SYSTEM], tokenize=False)
    with pytest.raises(ValueError, match=str(expected.value)):
        ours.chat.render([SYSTEM])


def test_qwen3_does_not_think_in_the_experiment_whose_answers_are_too_short_for_it(tmp_path):
    tokenizer = TextTokenizer(folder_of("qwen3", tmp_path / "model"), load(GSM8K, ()).config.chat_template_args)
    assert tokenizer.chat.render([ASKED], True).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
