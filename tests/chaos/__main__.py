"""Runs short runs, to each of which something happens: a process is killed, stopped for a while or for good, loses its
connections; the disk is full, the clock jumps back, a checkpoint is damaged, an engine answers nonsense. Each run must
end complete, or be completed by resume= where its launcher was killed, with an exact ledger and nothing left behind.

    python -m tests.chaos --n 50 --seed 1 --out build/chaos
    python -m tests.chaos --seed 1 --only 17          a case again
    python -m tests.chaos --seed 1 --n 50 --list      what would happen

Writes a JSON line per case to OUT/results.jsonl, and goes on after the cases that stand there with the same commit and
no uncommitted changes; other lines stay, but do not count. Failed runs are kept in OUT. Exit code 1 if a case failed.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos.cases import KINDS, draw
from tests.chaos.trials import FAILED, attempt
from tests.night import WITH_CHANGES, commit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=50, help="how many cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/chaos"))
    parser.add_argument("--only", type=int, nargs="*", help="numbers of cases, tried even if they have a result")
    parser.add_argument("--kinds", nargs="*", default=[], choices=[kind.name for kind in KINDS], metavar="KIND")
    parser.add_argument("--actions", nargs="*", default=[], metavar="ACTION", help='such as "kill"')
    parser.add_argument("--list", action="store_true", help="prints the cases, and runs none")
    arguments = parser.parse_args()
    numbers = range(arguments.n) if arguments.only is None else arguments.only
    cases = [draw(arguments.seed, number, tuple(arguments.kinds), tuple(arguments.actions)) for number in numbers]
    if arguments.list:
        print("\n".join(f"{case.number:4} {case.text}" for case in cases))
        return 0
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    results = out / "results.jsonl"
    lines = {} if arguments.only is not None else _known(results)
    for case in cases:
        if (key := (case.seed, case.number, case.text)) in lines:
            continue
        print(f"{case.number:4} {case.text} ...", flush=True)
        code = commit()
        result = attempt(case, out / f"{case.seed}-{case.number}")
        result.commit = code
        with results.open("a") as file:
            file.write(result.line() + "\n")
        lines[key] = json.loads(result.line())
        print(f"     {result.outcome} after {result.seconds:.0f} s ({result.whom})", flush=True)
        for problem in result.problems:
            print(f"     - {problem}", flush=True)
    mine = [lines[case.seed, case.number, case.text] for case in cases]
    table = table_of(mine)
    (out / "table.md").write_text(table + "\n")
    print(table)
    return 1 if any(line["outcome"] == FAILED for line in mine) else 0


def _known(path: Path) -> dict[tuple[int, int, str], dict[str, Any]]:
    """The last line of each case that was tried with the code as it is now."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    now = commit()
    count = [line for line in lines if line.get("commit") == now and not now.endswith(WITH_CHANGES)]
    if lines:
        print(
            f"{path}: goes on after {len(count)} results of commit {now}; {len(lines) - len(count)} of other code stay "
            "in the file, and do not count",
            flush=True,
        )
    return {(line["seed"], line["number"], line["text"]): line for line in count}


def table_of(lines: list[dict[str, Any]]) -> str:
    """How the cases of each kind and action ended."""
    outcomes = list(dict.fromkeys(line["outcome"] for line in lines))
    counts: dict[tuple[str, str], Counter[str]] = {}
    for line in lines:
        counts.setdefault((line["action"], line["target"]), Counter())[line["outcome"]] += 1
    rows = [f"| what | whom | {' | '.join(outcomes)} |", "|---|---|" + "---|" * len(outcomes)]
    for (action, target), count in sorted(counts.items()):
        rows.append(f"| {action} | {target} | {' | '.join(str(count[each] or '') for each in outcomes)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
