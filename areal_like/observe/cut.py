"""Recovery goes back to a checkpoint, and so do the metrics: what came after it happened in a life that is over."""

from pathlib import Path

from areal_like.observe.reading import JOINED, Line, dump_lines, read_lines
from areal_like.process import atomic_file


def rewind_metrics(run_dir: str | Path, step: int, attempt: int) -> int:
    """Leaves what belongs to the first `step` completed steps; `attempt` is the one that ended.

    Joined lines that are cut go to `metrics.attempt-K.jsonl`, the processes' own to `metrics/attempt-K/`. Nothing else
    may be writing. Returns how many steps were cut."""
    root = Path(run_dir)
    folder = root / "metrics"
    cut = _cut(root / JOINED, step, root / f"metrics.attempt-{attempt}.jsonl")
    steps = {line["step"] for line in cut}
    for path in sorted(folder.glob("*.jsonl")):
        steps |= {line["step"] for line in _cut(path, step, folder / f"attempt-{attempt}" / path.name)}
    return len(steps)


def _cut(path: Path, step: int, aside: Path) -> list[Line]:
    """First kept aside, then taken out, each at once: whatever interrupts this, a second call completes it."""
    if not path.is_file():
        return []
    lines = read_lines(path)
    over = [line for line in lines if line["step"] > step]
    kept = dump_lines(line for line in lines if line["step"] <= step)
    if len(kept) == path.stat().st_size:
        return []
    if over:
        earlier = read_lines(aside)
        aside.parent.mkdir(parents=True, exist_ok=True)
        atomic_file.write_atomic(aside, dump_lines([*earlier, *(line for line in over if line not in earlier)]))
    atomic_file.write_atomic(path, kept)
    return over
