"""The tables of refused keys in docs/differences.md and of keys that are not built in docs/status.md, made from the
checks. The rest of both pages is written by hand."""

from collections.abc import Iterable, Iterator

from areal_like.config.checks import not_built
from areal_like.config.checks.not_built import NOT_YET, KeyRule
from areal_like.config.checks.refused import all_refused

BEGIN, END = "<!-- refused keys, written by `make docs` -->", "<!-- end of refused keys -->"
NOT_BUILT_BEGIN, NOT_BUILT_END = "<!-- keys not built, written by `make docs` -->", "<!-- end of keys not built -->"


def render(page: str) -> str:
    """docs/differences.md with the table as it is now."""
    return _with_table(page, BEGIN, END, _rows())


def render_not_built(page: str) -> str:
    """docs/status.md with the table as it is now."""
    return _with_table(page, NOT_BUILT_BEGIN, NOT_BUILT_END, (row for row in _rows() if NOT_YET in row[1]))


def _with_table(page: str, begin: str, end: str, rows: Iterable[tuple[str, str]]) -> str:
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    assert found_begin and found_end, f"the page has no place for the table: {begin}"
    lines = ["| key | why a start is refused |", "|---|---|", *(f"| {key} | {reason} |" for key, reason in rows)]
    return "\n".join([before + begin, "", *lines, "", end + after])


def _rows() -> Iterator[tuple[str, str]]:
    yield from (_row(rule) for rule in not_built.RUN_RULES)
    yield from ((f"`{key}`", f"{what} {NOT_YET}; leave it out") for key, what in not_built.NOT_BUILT_SECTIONS.items())
    yield from (_row(rule, " of each model that is trained") for rule in not_built.MODEL_RULES)
    yield from (_row(rule, " in supervised training") for rule in not_built.SUPERVISED_RULES)
    yield from (_row(rule, " of a reward model") for rule in not_built.REWARD_MODEL_RULES)
    yield from ((f"`{key}`", reason) for key, reason in all_refused().items())


def _row(rule: KeyRule, where: str = "") -> tuple[str, str]:
    return f"`{rule.key}`{where}", rule.message.replace("{}", "another value")
