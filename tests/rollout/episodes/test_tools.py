"""Tools: their descriptions and calls, those that are built in, and what goes wrong with them."""

import asyncio
import threading
import time
from typing import Any, Literal

import pytest

from areal_like.config.problems import ConfigError
from areal_like.data.conversation_text import answer_message
from areal_like.data.user_code import SearchFolders
from areal_like.process.errors import InfrastructureError
from areal_like.rollout.episodes.tools.base import MAX_HANGING, tool_of
from areal_like.rollout.episodes.tools.calculator import calculator
from areal_like.rollout.episodes.tools.call_format import CallFormat
from areal_like.rollout.episodes.tools.python import PythonTool
from areal_like.rollout.episodes.tools.search import Search
from areal_like.rollout.episodes.workflows import make_workflow
from areal_like.rollout.episodes.workflows.tools import Tools


def weather(city: str, days: int = 1, unit: Literal["C", "F"] = "C", hours: list[int] | None = None) -> str:
    """The weather of a city."""
    return f"{city} {days} {unit} {hours}"


def test_a_signature_becomes_a_schema():
    function = tool_of(weather).described["function"]
    assert (function["name"], function["description"]) == ("weather", "The weather of a city.")
    assert function["parameters"] == {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"enum": ["C", "F"]},
            "hours": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
        },
        "required": ["city"],
    }


def call(tool: Any, arguments: Any, timeout_s: float = 60.0) -> tuple[str, bool]:
    return tuple(asyncio.run(tool.call(arguments, timeout_s)))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"city": "Rome"}, "Rome 1 C None"),
        ({"city": "Rome", "days": 2, "unit": "F", "hours": [1, 2]}, "Rome 2 F [1, 2]"),
        ({}, "city is missing; it takes city, days, unit, hours"),
        ({"city": "Rome", "day": 1}, "there is no argument day; it takes"),
        ({"city": False}, "city is not of the type"),
        ({"city": "Rome", "days": True}, "days is not of the type"),
        ({"city": "Rome", "hours": ["1"]}, "hours is not of the type"),
        ({"city": "Rome", "unit": "K"}, "unit is not of the type"),
        (None, "the arguments are no JSON object"),
    ],
)
def test_arguments_are_checked(arguments, expected):
    text, is_error = call(tool_of(weather), arguments)
    assert text.startswith(expected) and is_error != expected.startswith("Rome")


def test_a_tool_that_raises_exits_or_hangs_is_an_observation():
    def fails() -> str:
        raise KeyError("nothing there")

    def leaves() -> str:
        raise SystemExit(3)

    def hangs() -> str:
        time.sleep(600)
        return ""

    async def waits() -> str:
        await asyncio.sleep(600)
        return ""

    def stops() -> str:
        return str(next(iter([])))

    async def leaves_too() -> str:
        raise SystemExit(3)

    async def leaves_at_its_limit() -> str:
        try:
            return await waits()
        except asyncio.CancelledError:
            raise SystemExit(3) from None

    async def cancels() -> str:
        inner = asyncio.create_task(waits())
        inner.cancel()
        return await inner

    assert call(tool_of(fails), {}) == ("KeyError: 'nothing there'", True)
    for tool, limit_s in ((leaves, 60), (leaves_too, 60), (leaves_at_its_limit, 0.05)):
        assert call(tool_of(tool), {}, limit_s) == ("RuntimeError: it raised SystemExit", True)
    assert call(tool_of(cancels), {}) == ("RuntimeError: it raised CancelledError", True)
    assert call(tool_of(stops), {}) == ("RuntimeError: it raised StopIteration", True)
    for tool in (hangs, waits):
        assert call(tool_of(tool), {}, 0.05) == (f"{tool.__name__} took longer than 0.05 s", True)


def test_a_result_and_an_error_hold_no_secret(monkeypatch):
    monkeypatch.setenv("LOOKUP_API_KEY", "planted-0-lookup")

    def looks_up(fails: bool) -> str:
        """Looks up."""
        if fails:
            raise ValueError("401 for https://service/?key=planted-0-lookup")
        return "found by planted-0-lookup"

    tool = tool_of(looks_up)
    assert call(tool, {"fails": False}) == ("found by <secret>", False)
    assert call(tool, {"fails": True}) == ("ValueError: 401 for https://service/?key=<secret>", True)


def test_a_call_that_is_cancelled_with_its_group_ends_without_a_result():
    async def cancelled(tool: Any) -> None:
        calling = asyncio.create_task(tool.call({}, 60))
        await asyncio.sleep(0.01)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

    async def waits() -> str:
        await asyncio.sleep(600)
        return ""

    asyncio.run(cancelled(tool_of(waits)))


class Doubles:
    """Doubles."""

    async def __call__(self, number: int) -> int:
        return 2 * number


def test_a_tool_is_also_an_instance_that_is_called_but_no_class():
    tool = tool_of(Doubles())
    assert (tool.name, call(tool, {"number": 4})) == ("Doubles", ("8", False))
    with pytest.raises(ValueError, match="the tool Doubles is a class, not a function"):
        tool_of(Doubles)


def test_a_tool_whose_arguments_have_no_names_is_refused():
    def total(*numbers: int) -> int:
        return sum(numbers)

    def scale(a: int, /, b: int = 1) -> int:
        return a * b

    for function, name in ((total, "numbers"), (scale, "a")):
        with pytest.raises(ValueError, match=f"the tool {function.__name__} takes {name} by its place"):
            tool_of(function)


def test_a_tool_that_hangs_again_and_again_fails_the_group_instead_of_adding_threads():
    stopped = threading.Event()

    def hangs() -> str:
        stopped.wait()
        return "late"

    async def calls(tool: Any) -> None:
        await asyncio.gather(*(tool.call({}, 0.01) for _ in range(MAX_HANGING)))
        with pytest.raises(InfrastructureError, match="the tool hangs hangs: 16 of its calls still run"):
            await tool.call({}, 0.01)
        stopped.set()
        for thread in list(tool.hanging):
            thread.join()
        assert await tool.call({}, 60) == ("late", False) and not tool.hanging

    asyncio.run(calls(tool_of(hangs)))


def test_infrastructure_that_fails_is_no_observation():
    def broken() -> str:
        raise InfrastructureError("the sandbox is down")

    with pytest.raises(InfrastructureError):
        call(tool_of(broken), {})


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("2+3*4", "14"),
        ("(1+2)/4", "0.75"),
        ("-2**2", "-4"),
        ("2^10 % 7", "2"),
        ("7//2", "3"),
        ("1/0", "ZeroDivisionError"),
        ("9**9**9", "ValueError: the exponent"),
        ("10.0**300*10**200", "ValueError: the result is too large"),
        ("(-8)**0.5", "ValueError: the result is too large, or no real number"),
        ("__import__('os')", "ValueError: only numbers"),
        ("True + 1", "ValueError: only numbers"),
        ("1 +", "ValueError: this is no expression"),
        ("(" * 300 + "1" + ")" * 300, "ValueError: the expression has more"),
        ("(" * 199 + "1" + ")" * 199, ("1", "ValueError: this is no expression")),
    ],
)
def test_the_calculator_computes_arithmetic_only(expression, expected):
    text, _ = call(tool_of(calculator), {"expression": expression})
    assert text.startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('so <tool_call>\n{"name": "a", "arguments": {"x": false}}\n</tool_call>', [("a", {"x": False}, "")]),
        (
            '<tool_call>{"name": "a"}</tool_call> <tool_call>{"name": "b", "parameters": {}}',
            [("a", {}, ""), ("b", {}, "")],
        ),
        ('<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>', [("a", {"x": 1}, "")]),
        ("no call", []),
    ],
)
def test_calls_are_found_in_the_text(text, expected):
    assert [tuple(each) for each in CallFormat().parse(text)] == expected


def test_a_result_is_a_text_that_every_tokenizer_takes():
    def echo(value: str) -> str:
        """Returns it."""
        if value.startswith("raise"):
            raise ValueError(value)
        return value

    tool = tool_of(echo)
    assert call(tool, {"value": "a\ud800b"}) == ("a?b", False)
    assert call(tool, {"value": "raise \ud800"}) == ("ValueError: raise ?", True)
    assert call(tool, {"\ud800": 1}) == ("value is missing; it takes value", True)


def test_what_is_no_call_says_so():
    texts = ["{", "[1]", '{"name": 3}', '{"name": "a", "arguments": "{"}']
    texts += [f'{{"name": "a", "arguments": {{"x": {value}}}}}' for value in ("NaN", "-Infinity", "1e999", '"\\ud800"')]
    found = CallFormat("[[", "]]").parse("".join(f"[[{text}]]" for text in texts))
    assert len(found) == len(texts) and all(each.problem for each in found)


CODER = "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n2\n</parameter>\n"


OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}]}
SEVERAL = {"type": ["string", "null"]}


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        *[(schema, "10115", "10115") for schema in (OPTIONAL, SEVERAL)],
        *[(schema, "True", "True") for schema in (OPTIONAL, SEVERAL)],
        *[(schema, "null", None) for schema in (OPTIONAL, SEVERAL)],
        *[(schema, "None", None) for schema in (OPTIONAL, SEVERAL)],
        ({"anyOf": [{"enum": ["1", "2"]}, {"type": "null"}]}, "1", "1"),
        ({"type": ["integer", "string"]}, "10115", 10115),
        ({"type": ["integer", "null"]}, "many", "many"),
        ({"type": "integer"}, "[1]", [1]),
        ({"type": {}, "anyOf": 3, "enum": {}}, "[1]", [1]),
    ],
)
def test_a_value_without_quotes_stays_a_text_where_only_a_text_is_expected(schema, text, expected):
    written = f"<tool_call><function=find><parameter=zip>{text}</parameter></function></tool_call>"
    (found,) = CallFormat(name="xml").parse(written, {"find": {"zip": schema}})
    assert found.arguments == {"zip": expected}


def find(zip: str | None = None) -> str:
    return f"at {zip!r}"


def test_an_optional_text_may_look_like_a_number():
    tool = tool_of(find)
    written = "<tool_call><function=find><parameter=zip>10115</parameter></function></tool_call>"
    (found,) = CallFormat(name="xml").parse(written, {"find": tool.arguments})
    assert call(tool, found.arguments) == ("at '10115'", False)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("xml", f"so {CODER}</function>\n</tool_call>", [("weather", {"city": "12", "days": 2}, "")]),
        ("xml", CODER, [("weather", {"city": "12", "days": 2}, "")]),
        ("xml", "<tool_call><function=other><parameter=x>a b</parameter></function>", [("other", {"x": "a b"}, "")]),
        ("xml", "<tool_call>weather</tool_call>", [("", None, "a call is <function=NAME>")]),
        ("python", "[weather('Rome', days=2)]", [("weather", {"city": "Rome", "days": 2}, "")]),
        (
            "python",
            "<|python_start|>[weather(city='Rome', hours=[1]), other(x=-1)]<|python_end|>",
            [("weather", {"city": "Rome", "hours": [1]}, ""), ("other", {"x": -1}, "")],
        ),
        ("python", "[weather(open('/etc/passwd'))]", [("", None, "calls are a list")]),
        ("python", "[weather(", [("", None, "calls are a list")]),
        ("python", "[weather(city={[]})]", [("", None, "calls are a list")]),
        ("python", f"[weather(days=0x{'f' * 300}+1j)]", [("", None, "calls are a list")]),
        ("python", "[weather(1, 2, 3, 4, 5)]", [("weather", {}, "weather takes no 5. argument")]),
        ("python", "[1, 2] is a list", []),
    ],
)
def test_models_write_calls_in_other_formats(name, text, expected):
    found = CallFormat(name=name).parse(text, {"weather": tool_of(weather).arguments})
    assert [(each.name, each.arguments) for each in found] == [(each[0], each[1]) for each in expected]
    assert all(
        each.problem.startswith(why) and bool(each.problem) == bool(why)
        for each, (_, _, why) in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize(
    ("begin", "repeated", "end", "expected"),
    [
        ("", "<parameter=city>\n", "", {}),
        ("", "<parameter=", "", {}),
        ("<parameter=city>", "\n", "Rome\n</parameter>", {"city": "\n" * 199_999 + "Rome"}),
        ("", "<parameter=days>\n2\n</parameter>", "", {"days": 2}),
        ("", "</function>\n", "", {}),
    ],
)
def test_a_call_that_repeats_a_mark_until_it_is_cut_off_is_read(begin, repeated, end, expected):
    """In time that grows with its length: with its square it would take minutes."""
    text = f"<tool_call><function=weather>{begin}{repeated * 200_000}{end}"
    (found,) = CallFormat(name="xml").parse(text, {"weather": tool_of(weather).arguments})
    assert (found.name, found.arguments, found.problem) == ("weather", expected, "")


def test_an_answer_that_is_cut_off_in_the_name_of_a_channel_is_a_text():
    """Found in time that grows with its length."""
    for text in ("<|channel|>" + "a" * 2_000_000, "<|channel|>a" * 200_000):
        assert answer_message(text)["content"] == text


def test_a_function_of_a_file_is_a_tool(tmp_path):
    (tmp_path / "own.py").write_text('def double(number: int) -> int:\n    """Doubles."""\n    return 2 * number\n')
    made = make_workflow("tools", {"tools": ["calculator", "own.py:double"]}, SearchFolders(tmp_path, tmp_path))
    assert isinstance(made, Tools)
    assert list(made.tools) == ["calculator", "double"] and call(made.tools["double"], {"number": 4}) == ("8", False)
    with pytest.raises(ConfigError, match=r"workflow\.args\.tools.*has no doubel; did you mean double"):
        make_workflow("tools", {"tools": ["own.py:doubel"]}, SearchFolders(tmp_path, tmp_path))


def test_programs_run_in_the_sandbox(request):
    from areal_like.process.sandbox.sandbox import sandbox_problem

    if reason := sandbox_problem("rlimits"):
        pytest.skip(reason)
    tool = tool_of(PythonTool(30.0, "rlimits"), "python", extra_s=120)
    assert tool.described["function"]["parameters"]["required"] == ["code"]
    assert call(tool, {"code": "print(6 * 7)"}) == ("42", False)
    text, is_error = call(tool, {"code": "print('so far'); 1 / 0"})
    assert is_error and "so far" in text and "ZeroDivisionError" in text


def test_search_finds_the_paragraph_that_fits_best(tmp_path):
    (tmp_path / "a.md").write_text("Cats sleep.\n\nThe moon is made of rock.\n")
    (tmp_path / "b.txt").write_text("The sun is hot.\n\nCats and the moon")
    tool = tool_of(Search(tmp_path), "search")
    assert call(tool, {"query": "What is the MOON made of?"})[0].startswith("[a.md] The moon is made of rock.")
    assert call(tool, {"query": "xyz"})[0] == "nothing was found"
    with pytest.raises(ValueError, match="has no"):
        Search(tmp_path / "none")


def test_tools_that_cannot_be_used_are_errors_of_their_key(tmp_path):
    with pytest.raises(ConfigError, match=r"workflow\.args\.search_path.*is needed"):
        Tools(tools=["search"])
    with pytest.raises(ConfigError, match=r"workflow\.args\.search_path.*has no"):
        Tools(tools=["search"], search_path=str(tmp_path))
    with pytest.raises(ConfigError, match=r"workflow\.args\.tools.*'hammer' is no tool"):
        Tools(tools=["hammer"])
