"""docs/keys.md, made from the promise ledger."""

from itertools import groupby

from areal_like.config.promises.ledger import SOURCES, STATES, Promise, counts, rows

_INTRO = """\
# Keys

This page is made from the code by `make docs`; do not edit it.

Every key that AReaL, prime-rl, its hosted training or its command line promises to a user has one row here: where it
stands in our tree, how far it is, and the test that shows what it does.

- **live**: a test shows its effect. `python -m pytest --require-live-keys` fails when such a test is missing, was
  skipped or is red.
- **pending**: it has its place and its type and is checked, and no test of its own shows its effect at every home yet.
  What is not built at all never passes in silence: a start that asks for it ends with exit code 2 and names the key and
  what to take instead, and a dry run lists it under "cannot start here". Everything else works as its help says.
- **refused**: it will not mean anything here; the row says why, and what to write instead. Composing and a dry run
  go through all the same; a real start that sets it ends with exit code 2.

A home such as `a.b[].c` is a key in each item of the list `a.b`. A key of one of AReaL's classes stands wherever that
class is used; `actor`, `ref`, `rollout` and `gconfig` exist in GRPO and PPO experiments, `critic` in PPO ones, `model`
in supervised and reward-model ones. A key that several kinds of experiment share may be shown by a run of one of
them. A row that ends in *section* holds keys of its own and is as far as they are.
"GPU" says when an effect that needs a GPU was last seen on one.
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
    for source, promises in groupby(rows(), key=lambda promise: promise.source):
        lines += ["", f"## {_TITLES[source]}"]
        for group, members in groupby(promises, key=lambda promise: promise.group):
            if group:
                lines += ["", f"### {_GROUP_TITLES.get(group, group)}"]
            lines += ["", "| key | home | state | test or reason |", "|---|---|---|---|", *map(_table_row, members)]
    return "\n".join(lines) + "\n"


def _counts_table() -> list[str]:
    table = counts()
    lines = [f"| origin | {' | '.join(STATES)} | all |", "|---|---:|---:|---:|---:|"]
    for source in (*SOURCES, "total"):
        numbers = [*table[source].values(), sum(table[source].values())]
        lines.append(f"| {_TITLES.get(source, 'All')} | {' | '.join(map(str, numbers))} |")
    return lines


def _table_row(promise: Promise) -> str:
    remarks = [promise.reason] if promise.reason else _shown_by(promise)
    if promise.note:
        remarks.append(promise.note)
    if promise.is_section:
        remarks.append("*section*")
    if promise.gpu_seen:
        remarks.append(f"GPU: {promise.gpu_seen}")
    # A rule is a sentence with code in it already; its words stand as they are.
    key = promise.key if promise.source == "prime_config_rules" else f"`{promise.key}`"
    cells = (key, _homes(promise), promise.state, "; ".join(remarks))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _homes(promise: Promise) -> str:
    if promise.source == "prime_config_rules":
        return promise.homes[0].path
    return ", ".join(f"`{home.path}`" for home in promise.homes)


def _shown_by(promise: Promise) -> list[str]:
    """Each test once, with all its parameters behind it."""
    parameters: dict[str, list[str]] = {}
    for test in promise.tests:
        name, _, parameter = test.partition("[")
        parameters.setdefault(name, []).extend([parameter.removesuffix("]")] if parameter else [])
    return [f"`{name}[{', '.join(names)}]`" if names else f"`{name}`" for name, names in parameters.items()]
