"""Writes docs/reference.md, docs/keys.md, docs/metrics.md, docs/files.md, the tables of refused keys in
docs/differences.md and docs/status.md, that of memory in docs/gpu.md, those of learning curves in docs/results.md and
docs/experiments.md with its charts, and the counts that `python -m launcher keys` prints.

`python -m docs.make.pages` writes them; with `--check` it names those that are out of date (exit 1).
"""

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from areal_like.config.describe.key_counts import COUNTS_PATH
from docs.make import files_page, gpu_memory, keys_page, metrics_page, reference_page, refused_keys, results_page

DOCS = Path(__file__).parents[1]


def main(argv: Sequence[str]) -> int:
    """Writes the files, or compares them."""
    if list(argv) not in ([], ["--check"]):
        print("usage: python -m docs.make.pages [--check]", file=sys.stderr)
        return 2
    stale = [path for path, text in pages().items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        name = path.relative_to(DOCS.parent)
        if argv:
            print(f"{name} is out of date; run `make docs`", file=sys.stderr)
        else:
            path.write_text(pages()[path], encoding="utf-8")
            print(f"{name} written")
    return 1 if argv and stale else 0


@cache
def pages() -> dict[Path, str]:
    """File -> its content."""
    differences, status, gpu = (DOCS / f"{name}.md" for name in ("differences", "status", "gpu"))
    results, experiments = (DOCS / f"{name}.md" for name in ("results", "experiments"))
    return {
        DOCS / "reference.md": reference_page.render(),
        DOCS / "keys.md": keys_page.render(),
        DOCS / "metrics.md": metrics_page.render(),
        DOCS / "files.md": files_page.render(),
        differences: refused_keys.render(differences.read_text(encoding="utf-8")),
        status: refused_keys.render_not_built(status.read_text(encoding="utf-8")),
        gpu: gpu_memory.render(gpu.read_text(encoding="utf-8")),
        results: results_page.render(results.read_text(encoding="utf-8"), results_page.RESULTS),
        experiments: results_page.render(experiments.read_text(encoding="utf-8"), results_page.EXPERIMENTS),
        **results_page.charts(results_page.EXPERIMENTS),
        COUNTS_PATH: keys_page.counts_json(),
    }


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
