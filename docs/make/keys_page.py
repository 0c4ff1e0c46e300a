"""docs/keys.md and the counts of `python -m launcher keys`, made from the ledger of keys."""

import json
from itertools import groupby

from docs.make.key_ledger import SAME, SECTION, SOURCES, STATES, Counts, Row, counts, rows

_INTRO = """\
# Keys

This page is made from the code by `make docs`; do not edit it.

Every key that AReaL, prime-rl, its hosted training or its command line has is a row here: its place in our tree, its
state, and the tests that show it.

- **live**: written as AReaL writes it, the key has its documented effect. A test sets it by the whole configuration
  path, sees the effect, and fails when the key is ignored. `make test` fails when no such test passed.
- **ours**: the same for a key of prime-rl under the name that it has here. Its own spelling cannot be written yet:
  files of prime-rl are not read.
- **same as X**: the key must equal X; another value is refused. The test shows that.
- **no effect**: accepted, and without effect at all its homes, as a test shows.
- **pending**: it has its place and its type and is checked, and no test shows its effect at every home yet. A start
  that sets a key that is not built ends with exit code 2 and names the key and what to write instead; a dry run lists
  it under "cannot start here".
- **refused**: nothing here can honour it; the row says why, and what to write instead. Composing and a dry run work; a
  real start that sets it ends with exit code 2.

A home such as `a.b[].c` is a key in each item of the list `a.b`. A key of one of AReaL's classes stands wherever that
class is used; `actor`, `ref`, `rollout` and `gconfig` exist in GRPO and PPO experiments, `critic` in PPO ones, `model`
in supervised and reward-model ones. A key that several kinds of experiment share may be shown by a run of one of
them. Keys that mean nothing at one of several homes (learning rates of `ref`) are shown to have no effect there.
"GPU" says when an effect that needs a GPU was last seen on one.

A number such as 12 / 20 is distinct keys / rows: rows with the same homes, such as a key that five experiment classes
share, are one key. Rows marked *section* hold keys of their own and are not counted.
"""

_TITLES = {
    "areal": "AReaL",
    "prime_rl": "prime-rl",
    "prime_hosted": "Hosted training of prime",
    "prime_cli": "Command line of prime",
    "prime_config_rules": "Rules of prime for files and flags",
}
_GROUP_TITLES = {"orch": "Orchestrator", "train": "Trainer", "infer": "Inference"}


def render() -> str:
    """The whole page."""
    lines = [*_INTRO.splitlines(), "", *_counts_table()]
    for source, members in groupby(rows(), key=lambda row: row.source):
        lines += ["", f"## {_TITLES[source]}"]
        for group, keys in groupby(members, key=lambda row: row.group):
            if group:
                lines += ["", f"### {_GROUP_TITLES.get(group, group)}"]
            lines += ["", "| key | home | state | test or reason |", "|---|---|---|---|", *map(_table_row, keys)]
    return "\n".join(lines) + "\n"


def counts_json() -> str:
    """The counts that the verb `keys` prints."""
    return json.dumps(counts(), indent=1) + "\n"


def _counts_table() -> list[str]:
    table: Counts = counts()
    lines = [f"| origin | {' | '.join(STATES)} | all |", "|---|" + "---:|" * (len(STATES) + 1)]
    for source in (*SOURCES, "total"):
        numbers = list(table[source].values())
        numbers.append((sum(number for number, _ in numbers), sum(keys for _, keys in numbers)))
        cells = [f"{keys} / {number}" if number else "0" for number, keys in numbers]
        lines.append(f"| {_TITLES.get(source, 'All')} | {' | '.join(cells)} |")
    return lines


def _table_row(row: Row) -> str:
    notes = [f"`{test}`" for test in row.tests]
    if row.reason and row.state != SAME:
        notes.append(row.reason)
    if row.note:
        notes.append(row.note)
    if row.state == SECTION:
        notes.append("*section*")
    if row.gpu_seen:
        notes.append(f"GPU: {row.gpu_seen}")
    # A rule is a sentence with code in it already; its words stand as they are.
    key = row.key if row.source == "prime_config_rules" else f"`{row.key}`"
    state = {SAME: f"{SAME} {row.reason}", SECTION: ""}.get(row.state, row.state)
    cells = (key, _homes(row), state, "; ".join(notes))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _homes(row: Row) -> str:
    if row.source == "prime_config_rules":
        return row.homes[0].path
    return ", ".join(f"`{home.path}`" for home in row.homes)
