"""Messages to text, by the chat template of a tokenizer's folder: as transformers renders it, without transformers."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = dict[str, Any]
ASSISTANT = "assistant"
ANSWER_START, ANSWER_END = "\ue0f0", "\ue0f1"
"""Of no script: they mark where an answer begins and ends, and are taken out again."""


class RenderedSpan(NamedTuple):
    """A stretch of a rendered conversation, and whether the assistant wrote it."""

    text: str
    is_answer: bool


class ChatTemplate:
    """`tokens` are those that it may name, such as `bos_token`; `place` is the file that it stands in."""

    def __init__(self, source: str, tokens: dict[str, str], place: str) -> None:
        self._tokens, self._place = tokens, place
        self._marks_itself = re.search(r"\{%-?\s*generation\b", source) is not None
        try:
            self._plain = _environment(lambda text: text).from_string(source)
            self._marked = _environment(lambda text: f"{ANSWER_START}{text}{ANSWER_END}").from_string(source)
        except TemplateError as fault:
            raise ValueError(f"{place} is no chat template: {fault}") from fault

    def render(self, messages: Sequence[Message], asks: bool = False, tools: Any = None) -> str:
        """`asks` ends the text where the next answer begins."""
        return self._render(self._plain, messages, asks, tools)

    def parts(self, messages: Sequence[Message], tools: Any = None) -> tuple[list[RenderedSpan], int]:
        """The whole conversation, and how many answers in it are not told from the rest: where a template shortens
        older ones (by the thoughts that led to them, say), nobody would write what then stands there. The last answer
        is always told."""
        if self._marks_itself:
            pieces = re.split(f"([{ANSWER_START}{ANSWER_END}])", self._render(self._marked, messages, False, tools))
            signs = ["", *pieces[1::2]]
            return _non_empty(
                RenderedSpan(text, sign == ANSWER_START) for text, sign in zip(pieces[::2], signs, strict=True)
            ), 0
        whole, parts, at, hidden = self.render(messages, tools=tools), list[RenderedSpan](), 0, 0
        for number, message in enumerate(messages):
            if message.get("role") != ASSISTANT:
                continue
            is_last = number == len(messages) - 1
            after = whole if is_last else self.render(messages[: number + 1], tools=tools)
            if not whole.startswith(after):
                hidden += 1
                continue
            before = self.render(messages[:number], asks=True, tools=tools) if number else ""
            start = max(at, len(_common_prefix(before, whole)))
            parts += [RenderedSpan(whole[at:start], False), RenderedSpan(whole[start : len(after)], True)]
            at = len(after)
        return _non_empty([*parts, RenderedSpan(whole[at:], False)]), hidden

    def _render(self, template: Template, messages: Sequence[Message], asks: bool, tools: Any) -> str:
        said = {"messages": list(messages), "documents": None, "add_generation_prompt": asks}
        try:
            said["tools"] = json.loads(tools) if isinstance(tools, str) else tools
            return template.render(said, **self._tokens)
        except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as fault:
            raise ValueError(f"{self._place} cannot render {repr(list(messages))[:80]}: {fault}") from fault


def read_template(folder: Path, described: dict[str, Any]) -> tuple[str, Path] | None:
    """The template in a tokenizer's folder, and its file; `described` is what tokenizer_config.json says."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8"), file
    said = described.get("chat_template")
    if isinstance(said, list):  # several by name
        said = {each.get("name"): each.get("template") for each in said}.get("default")
    return (said, folder / "tokenizer_config.json") if isinstance(said, str) else None


class _GenerationTag(Extension):
    """`{% generation %}` ... `{% endgeneration %}`: how some templates say themselves what the assistant wrote."""

    tags = {"generation"}  # noqa: RUF012 (as jinja2 declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        mark: Any = self.environment.globals["mark_generated"]
        return str(mark(caller()))


def _environment(mark: Callable[[str], str]) -> ImmutableSandboxedEnvironment:
    """What templates find there is what transformers has for them."""
    found = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    found.filters["tojson"] = _to_json
    found.globals |= {"raise_exception": _raise, "strftime_now": _now, "mark_generated": mark}
    return found


def _to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, **more: Any) -> str:
    """Without the escapes for HTML that jinja2's own makes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, **more)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _non_empty(parts: Iterable[RenderedSpan]) -> list[RenderedSpan]:
    return [part for part in parts if part.text]


def _common_prefix(one: str, other: str) -> str:
    """What both begin with."""
    end = next((at for at, signs in enumerate(zip(one, other, strict=False)) if signs[0] != signs[1]), len(one))
    return one[: min(end, len(other))]
