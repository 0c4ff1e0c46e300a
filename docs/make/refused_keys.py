"""The table of refused keys in docs/differences.md, made from the checks. The rest of the page is written by hand."""

from collections.abc import Iterator

from areal_like.config.checks import not_built
from areal_like.config.checks.not_built import NOT_YET, KeyRule
from areal_like.config.checks.refused import REFUSED

BEGIN, END = "<!-- refused keys, written by `make docs` -->", "<!-- end of refused keys -->"


def render(page: str) -> str:
    """The page with the table as it is now."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, "docs/differences.md has no place for the table of refused keys"
    lines = ["| key | why a start is refused |", "|---|---|", *(f"| {key} | {reason} |" for key, reason in _rows())]
    return "\n".join([before + BEGIN, "", *lines, "", END + after])


def _rows() -> Iterator[tuple[str, str]]:
    yield from (_row(rule) for rule in not_built.RUN_RULES)
    yield from ((f"`{key}`", f"{what} {NOT_YET}; leave it out") for key, what in not_built.NOT_BUILT_SECTIONS.items())
    yield from (_row(rule, " of each model that is trained") for rule in not_built.MODEL_RULES)
    yield from (_row(rule, " in supervised training") for rule in not_built.SUPERVISED_RULES)
    yield from (_row(rule, " of a reward model") for rule in not_built.REWARD_MODEL_RULES)
    yield from ((f"`{key}`", reason) for key, reason in REFUSED.items())


def _row(rule: KeyRule, where: str = "") -> tuple[str, str]:
    return f"`{rule.key}`{where}", rule.message.replace("{}", "another value")
