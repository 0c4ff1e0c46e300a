"""Chat templates of tokenizer folders, rendered as transformers does, without importing transformers."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = dict[str, Any]
NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})
SYSTEM, USER, ASSISTANT = "system", "user", "assistant"
ANSWER_START, ANSWER_END = "\ue0f0", "\ue0f1"
"""Private-use characters that mark the start and end of an answer; removed after rendering."""


class RenderedSpan(NamedTuple):
    """A span of a rendered conversation, and whether the assistant wrote it."""

    text: str
    is_answer: bool


class ChatTemplate:
    """`tokens` are those that the template may use, such as `bos_token`; `path` is its file, for messages; `arguments`
    are further variables, such as `enable_thinking`."""

    def __init__(
        self, source: str, tokens: dict[str, str], path: str, arguments: Mapping[str, Any] = NO_ARGUMENTS
    ) -> None:
        self._variables, self._path = {**tokens, **arguments}, path
        self._has_generation_tag = re.search(r"\{%-?\s*generation\b", source) is not None
        try:
            self._plain = _environment(lambda text: text).from_string(source)
            self._marked = _environment(lambda text: f"{ANSWER_START}{text}{ANSWER_END}").from_string(source)
        except TemplateError as fault:
            raise ValueError(f"{path} is not a chat template: {fault}") from fault

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = False, tools: Any = None) -> str:
        """With `add_generation_prompt`, ends where the next answer begins."""
        return self._render(self._plain, messages, add_generation_prompt, tools)

    def spans(self, messages: Sequence[Message], tools: Any = None) -> tuple[list[RenderedSpan], int]:
        """The spans of the whole conversation, and the number of answers that cannot be located: a template may shorten
        older answers (by removing their thoughts, say), and no model would generate the shortened text. The last answer
        is always located."""
        if self._has_generation_tag:
            chunks = re.split(f"([{ANSWER_START}{ANSWER_END}])", self._render(self._marked, messages, False, tools))
            marks = ["", *chunks[1::2]]
            return _non_empty(
                RenderedSpan(text, mark == ANSWER_START) for text, mark in zip(chunks[::2], marks, strict=True)
            ), 0
        full, spans, end, num_unlocated = self.render(messages, tools=tools), list[RenderedSpan](), 0, 0
        for index, message in enumerate(messages):
            if message.get("role") != ASSISTANT:
                continue
            is_last = index == len(messages) - 1
            after = full if is_last else self.render(messages[: index + 1], tools=tools)
            if not full.startswith(after):
                num_unlocated += 1
                continue
            before = self.render(messages[:index], add_generation_prompt=True, tools=tools) if index else ""
            start = max(end, len(_common_prefix(before, full)))
            spans += [RenderedSpan(full[end:start], False), RenderedSpan(full[start : len(after)], True)]
            end = len(after)
        return _non_empty([*spans, RenderedSpan(full[end:], False)]), num_unlocated

    def _render(self, template: Template, messages: Sequence[Message], add_generation_prompt: bool, tools: Any) -> str:
        variables = {"messages": list(messages), "documents": None, "add_generation_prompt": add_generation_prompt}
        try:
            variables["tools"] = json.loads(tools) if isinstance(tools, str) else tools
            return template.render({**self._variables, **variables})
        except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as fault:
            raise ValueError(f"{self._path} cannot render {repr(list(messages))[:80]}: {fault}") from fault


def read_template(folder: Path, config: dict[str, Any]) -> tuple[str, Path] | None:
    """The template in a tokenizer's folder, and its file; `config` is the content of tokenizer_config.json."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8"), file
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        template = {each.get("name"): each.get("template") for each in template}.get("default")
    return (template, folder / "tokenizer_config.json") if isinstance(template, str) else None


class _GenerationTag(Extension):
    """`{% generation %}` ... `{% endgeneration %}`: a template's own marks of what the assistant wrote."""

    tags = {"generation"}  # noqa: RUF012 (as jinja2 declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Callable[[], str]) -> str:
        mark: Any = self.environment.globals["mark_generated"]
        return str(mark(caller()))


def _environment(mark: Callable[[str], str]) -> ImmutableSandboxedEnvironment:
    """With the functions that transformers provides to templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise, "strftime_now": _now, "mark_generated": mark}
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, **more: Any) -> str:
    """Without the HTML escapes of jinja2's filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, **more)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _non_empty(parts: Iterable[RenderedSpan]) -> list[RenderedSpan]:
    return [part for part in parts if part.text]


def _common_prefix(one: str, other: str) -> str:
    end = next((at for at, signs in enumerate(zip(one, other, strict=False)) if signs[0] != signs[1]), len(one))
    return one[: min(end, len(other))]
