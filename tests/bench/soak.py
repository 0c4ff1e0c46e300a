"""A long run of short steps: does any process hold more and more memory, descriptors or threads, does any file grow
faster and faster, do files stay behind?

    python tests/bench/soak.py [--steps 2000] [--output build/bench/soak.json] [override ...]

Each process of a run by the real command is sampled twice a second, and each file of its directory; files in its shared
memory, its temporary folder and its directory are counted. After a fifth of the steps, which fill caches, growth is the
median slope of all pairs of samples times the steps that are left (the estimate of Theil and Sen: single peaks do not
count). Prints a table with a verdict, and writes charts beside the JSON. Exit code 1 if something is not flat.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from areal_like.observe.charts import Series, svg_chart  # noqa: E402
from areal_like.observe.reading import JOINED, LineFollower, is_evaluation  # noqa: E402
from areal_like.process.run_memory import memory_folder  # noqa: E402
from tests.bench.report_file import add_output, write_report  # noqa: E402
from tests.bench.watched import memory_of, running_below  # noqa: E402

CONFIG = "grpo.yaml"
USUAL = (
    *("train_dataset.batch_size=4", "n_samples=2", "evaluator.freq_steps=50", "evaluator.num_examples=16"),
    "total_train_epochs=1000",
)
"""Short steps, and an evaluation after fifty."""
CHECKPOINTS = 20
"""So many are written: after the warm-up there are as many as are kept."""
POLL_S = 0.5
WARM_UP, LATE = 0.2, 0.8
"""What is not there between these shares of the steps is not judged. Steps become known some at a time."""
MAX_SAMPLES = 400
"""Slopes are of all pairs: of so many samples they take a moment."""
MEMORY, DESCRIPTORS, THREADS, FILE, FILES = "memory", "descriptors", "threads", "file", "files"
ALLOWED = {MEMORY: 16 << 20, DESCRIPTORS: 4, THREADS: 2, FILES: 4}
"""Growth after the warm-up that is called flat: allocators return memory late."""
RUN, SHARED, TEMPORARY = "run directory", "shared memory", "temporary folder"
FILES_PER_STEP = 0.1
"""So many may a run keep in its directory: each evaluation has its answers there."""
CHARTS = {
    MEMORY: ("Memory of each role, MB", 2.0**20),
    DESCRIPTORS: ("Open descriptors of each role", 1.0),
    THREADS: ("Threads of each role", 1.0),
    FILES: ("Files that the run has", 1.0),
    FILE: ("Size of files in the run's directory, kB", 2.0**10),
}
"""Title and unit of each."""
ALLOWED_FASTER = 1.25
"""A file may grow by so much more in the last steps than in as many before: lines have longer numbers."""
SMALL_FILE = 64 << 10

Measure = tuple[str, str]
"""What is measured, and of which role or file."""
Points = list[tuple[float, float]]


class Growth(NamedTuple):
    what: str
    of: str
    first: float
    last: float
    grown: float
    allowed: float

    @property
    def is_flat(self) -> bool:
        return self.grown <= self.allowed


class Sampler(threading.Thread):
    """Samples the processes below one, and the files of the run, from the first step to the one before the last: after
    that the processes end."""

    def __init__(self, root: int, folder: Path, steps: int) -> None:
        super().__init__(daemon=True)
        self.root, self.folder, self.steps = root, folder, steps
        self.ended = threading.Event()
        self.points: dict[Measure, Points] = defaultdict(list)
        self._roles: dict[int, str] = {}
        self._metrics: LineFollower | None = None
        self._step = 0

    def run(self) -> None:
        while not self.ended.wait(POLL_S):
            if directory := next(iter(self.folder.glob("runs/*/soak")), None):
                self.sample(directory)

    def sample(self, directory: Path) -> None:
        self._metrics = self._metrics or LineFollower(directory / JOINED)
        steps = [int(line["step"]) for line in self._metrics.new_lines() if not is_evaluation(line)]
        self._step = max([self._step, *steps])
        if not 0 < self._step < self.steps:
            return
        held: dict[Measure, float] = defaultdict(float)
        for pid in running_below(self.root, self._roles):
            role = self._roles[pid]
            held[MEMORY, role] += memory_of(pid)
            held[DESCRIPTORS, role] += num_entries(f"/proc/{pid}/fd")
            held[THREADS, role] += num_entries(f"/proc/{pid}/task")
        for path in files_below(directory):
            held[FILE, str(path.relative_to(directory))] = size_of(path)
        memory = memory_folder(json.loads((directory / "run.json").read_text(encoding="utf-8"))["run_id"])
        for what, folder in ((RUN, directory), (SHARED, memory), (TEMPORARY, self.folder / "tmp")):
            held[FILES, what] = num_files(folder)
        for measure, value in held.items():
            self.points[measure].append((self._step, value))


def num_entries(folder: str) -> int:
    try:
        return len(os.listdir(folder))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0


def files_below(directory: Path) -> list[Path]:
    """Those that a run appends to. Checkpoints and weights are files of their own, of which a number is kept."""
    return [path for path in directory.rglob("*") if path.is_file() and not {"checkpoints", "weights"} & {*path.parts}]


def num_files(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes of all pairs."""
    thinned = points[:: 1 + len(points) // MAX_SAMPLES]
    slopes = [(right - left) / (b - a) for (a, left), (b, right) in combinations(thinned, 2) if b > a]
    return statistics.median(slopes) if slopes else 0.0


def held_growth(measure: Measure, points: Points, begin: float) -> Growth:
    """Of memory, descriptors, threads and the number of files."""
    after = [point for point in points if point[0] >= begin]
    steps = after[-1][0] - after[0][0]
    tenth = 1 + len(after) // 10
    first, last = (statistics.median(value for _, value in part) for part in (after[:tenth], after[-tenth:]))
    allowed = FILES_PER_STEP * steps if measure == (FILES, RUN) else ALLOWED[measure[0]]
    return Growth(*measure, first, last, slope(after) * steps, allowed)


def file_growth(measure: Measure, points: Points, begin: float) -> Growth | None:
    """How much more a file grew in the second half of the steps after the warm-up than in the first; than a small file
    has, if it did not grow in the first. None for small files, and for those that are not there from the beginning
    on."""
    after = [point for point in points if point[0] >= begin]
    if len(after) < 3 or points[0][0] > begin or after[-1][1] < SMALL_FILE:
        return None
    middle = (after[0][0] + after[-1][0]) / 2
    halves = [[p for p in after if p[0] <= middle], [p for p in after if p[0] >= middle]]
    steps = [max(1.0, half[-1][0] - half[0][0]) for half in halves]
    rates = [(half[-1][1] - half[0][1]) / each for half, each in zip(halves, steps, strict=True)]
    faster = rates[1] / (rates[0] or SMALL_FILE / steps[0]) if rates[0] >= 0 else 1.0
    return Growth(*measure, after[0][1], after[-1][1], faster, ALLOWED_FASTER)


def all_growth(points: dict[Measure, Points], steps: int) -> list[Growth]:
    """Of everything that was there after the warm-up and late in the steps."""
    begin, found = WARM_UP * steps, list[Growth]()
    for measure, each in sorted(points.items()):
        if not any(step >= begin for step, _ in each) or each[-1][0] < LATE * steps:
            continue
        growth = file_growth(measure, each, begin) if measure[0] == FILE else held_growth(measure, each, begin)
        found += [growth] if growth else []
    return found


def shown(growth: Growth) -> str:
    verdict = "flat" if growth.is_flat else "NOT FLAT"
    if growth.what == MEMORY:
        first, last, grown = (f"{value / 2**20:.1f} MB" for value in (growth.first, growth.last, growth.grown))
        return f"| {growth.of} | {growth.what} | {first} | {last} | {grown} | {verdict} |"
    if growth.what == FILE:
        first, last = f"{growth.first / 2**10:.0f} kB", f"{growth.last / 2**10:.0f} kB"
        return f"| {growth.of} | {growth.what} | {first} | {last} | {growth.grown:.2f} times | {verdict} |"
    return f"| {growth.of} | {growth.what} | {growth.first:.0f} | {growth.last:.0f} | {growth.grown:.1f} | {verdict} |"


def soak(folder: Path, words: Sequence[str], steps: int) -> dict[Measure, Points]:
    (folder / "tmp").mkdir()
    own = {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state"), "TMPDIR": str(folder / "tmp")}
    environment = {**os.environ, **own}
    command = [sys.executable, "-m", "launcher", "--config", CONFIG, "cluster.fileroot=runs", "trial_name=soak", *words]
    with (folder / "output.txt").open("w+b") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
        sampler = Sampler(process.pid, folder, steps)
        sampler.start()
        code = process.wait()
        sampler.ended.set()
        sampler.join()
        output.seek(0)
        if code:
            raise SystemExit(f"exit code {code}\n{output.read().decode(errors='replace')}")
    return sampler.points


def chart_of(points: dict[Measure, Points], measured: str, steps: int) -> str:
    title, unit = CHARTS[measured]
    series = [
        Series(of, [(step, value / unit) for step, value in each])
        for (what, of), each in sorted(points.items())
        if what == measured and (what != FILE or each[-1][1] >= SMALL_FILE)
    ]
    return svg_chart(f"{title}, in {steps} steps", series)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="of the configuration, such as seed=3")
    parser.add_argument("--steps", type=int, default=2000)
    add_output(parser, "soak")
    arguments = parser.parse_args()
    often = f"recover.freq_steps={max(1, arguments.steps // CHECKPOINTS)}"
    words = [*USUAL, f"total_train_steps={arguments.steps}", often, *arguments.overrides]
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        points = soak(Path(folder), words, arguments.steps)
    found = all_growth(points, arguments.steps)
    print("| of | what | after the warm-up | at the end | growth | |\n| --- | --- | ---: | ---: | ---: | --- |")
    print("\n".join(map(shown, found)))
    output = arguments.output
    output.parent.mkdir(parents=True, exist_ok=True)
    for what in CHARTS:
        chart = output.with_name(f"{output.stem}-{what}.svg")
        chart.write_text(chart_of(points, what, arguments.steps), encoding="utf-8")
    report = {
        "what": "growth of memory, descriptors, threads, files and their number in a long run",
        "config": [CONFIG, *words],
        "found": [{**each._asdict(), "is_flat": each.is_flat} for each in found],
        "points": {"/".join(measure): each[:: 1 + len(each) // 200] for measure, each in sorted(points.items())},
    }
    write_report(json.loads(json.dumps(report)), output)
    return 0 if all(each.is_flat for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
