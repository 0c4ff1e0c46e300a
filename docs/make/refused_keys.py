"""The tables of refused keys in docs/differences.md and of keys that are not built in docs/status.md, made from the
rules that keys declare. The rest of both pages is written by hand."""

from collections.abc import Iterable, Iterator

from areal_like.config.checks.key_rules import MODELS
from areal_like.config.describe.rules import kinds_text
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.fields import NOT_YET, KeyRule
from areal_like.config.problems import Stage
from areal_like.config.schema import Schema

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
    """Every rule of a key once, in the order of the tree."""
    seen: dict[tuple[str, str], None] = {}
    for cls in EXPERIMENTS.values():
        for entry, rule in Schema.of(cls).rules:
            if rule.stage is Stage.CANNOT_START:
                seen[_place(entry.path, rule), rule.reason.replace("{}", "another value")] = None
    yield from seen


def _place(path: str, rule: KeyRule) -> str:
    top, _, below = path.partition(".")
    if top in MODELS:
        return f"`{below}` of each model that is trained"
    return f"`{path}` {kinds_text(rule)}" if rule.kinds else f"`{path}`"
