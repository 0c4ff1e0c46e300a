"""The figures of all parts as a table, each beside the one that is aimed at."""

from collections.abc import Mapping
from typing import Any

from tests.gpu.parts import PARTS
from tests.gpu.report import DONE, number

TINY = " (tiny sizes, which test the program alone)"
AIMED_AT = "Aims are for one H100 of 80 GB (SXM)."


def summary(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """`parts`: name -> content of its report. Parts that never ran are named."""
    lines = []
    facts: dict[str, Any] = next(
        (part["facts"]["machine"] for part in parts.values() if "machine" in part["facts"]), {}
    )
    if facts:
        lines += [", ".join(f"{name} {value}" for name, value in facts.items() if name != "commit"), ""]
    for part in PARTS:
        if part.name not in parts:
            continue
        content = parts[part.name]
        took = f"{content['took_s']:.0f} s" if "took_s" in content else ""
        tiny = TINY if content.get("small") else ""
        lines.append(f"{part.name}{tiny}: {content['status']}  {took}".rstrip())
        if content["status"] != DONE and content["reason"]:
            lines += [f"    {line}" for line in content["reason"].splitlines()[-12:]]
        lines += [_row(row) for row in content["figures"]]
    if left := [part.name for part in PARTS if part.name not in parts]:
        lines.append(f"not run yet: {','.join(left)}")
    return "\n".join([*lines, AIMED_AT]) + "\n"


def _row(row: Mapping[str, Any]) -> str:
    value = f"{number(row['value'])} {row['unit']}".strip()
    aim = f"{'limit' if row['limit'] else 'aim'} {row['aim']}" if row["aim"] else ""
    verdict = {True: "ok", False: "BEYOND" if row["limit"] else "missed", None: ""}[row["met"]]
    note = row["note"].splitlines()[-1] if row["note"] else ""
    return f"  {row['name']:<56} {value:>16}  {aim:<28} {verdict:<7} {note}".rstrip()
