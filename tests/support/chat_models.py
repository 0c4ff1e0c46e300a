"""Chat tokenizers for tests: the built-in model's, one token per character, with a template."""

import json
import shutil
from pathlib import Path

from areal_like.data.tokenizer import TextTokenizer
from areal_like.models import model_folder

TURNS = "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }}<eos>{% endfor %}"
PLAIN = TURNS + "{% if add_generation_prompt %}<assistant> {% endif %}"
"""Usual template: every turn ends with the token that ends answers."""

MARKED = (
    "{% for m in messages %}<{{ m['role'] }}> {% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<eos>"
    "{% endgeneration %}{% else %}{{ m['content'] }}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)
"""Template that marks the assistant's tokens."""

SHORTENS = (
    "{% for m in messages %}<{{ m['role'] }}> {% set text = m['content'] %}"
    "{% if m['role'] == 'assistant' and not loop.last %}{% set text = text.split(']')[-1] %}{% endif %}"
    "{{ text }}<eos>{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}"
)
"""Template that removes the thoughts from older answers."""

BARE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }} | {% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""Template without end tokens."""

USER, ANSWER = {"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}
AGAIN, LAST = {"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}
TALK = [USER, ANSWER, AGAIN, LAST]


def chat_folder(folder: Path, template: str = PLAIN) -> Path:
    """A copy of the built-in model whose tokenizer has this template."""
    shutil.copytree(model_folder("builtin:tiny-addition"), folder)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def chat_tokenizer(folder: Path, template: str = PLAIN) -> TextTokenizer:
    return TextTokenizer(chat_folder(folder, template))


def in_config(folder: Path, template: object) -> Path:
    """The template in the file of older tokenizers."""
    (folder / "chat_template.jinja").unlink()
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": template}))
    return folder
