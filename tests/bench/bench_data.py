"""The first step and the memory of each process, with a thousand and with a million rows.

    python tests/bench/bench_data.py [--rows 1000 1000000] [--forms jsonl parquet] [--output build/bench/data.json]

A row has about 300 characters; their length is limited (train_dataset.max_length). Each number of rows is a run by the
real command, of two steps. It never fails because of a time.
"""

import argparse
import json
import os
import platform
import random
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench import ring_times  # noqa: E402
from tests.bench.watched import watch  # noqa: E402

LIMIT_S, AIM_S, STEPS = 900.0, 3.0, 2
NOTE_LENGTH, ROWS_AT_ONCE = 250, 50_000
SETTINGS = (
    *("rollout.backend=embedded", "cluster.fileroot=runs", "trial_name=bench", "train_dataset.max_length=16"),
    *("evaluator.freq_steps=null", "valid_dataset=null", f"total_train_steps={STEPS}", "recover.mode=disabled"),
)


def rows(count: int) -> Iterator[dict[str, str]]:
    generator = random.Random(1)
    for number in range(count):
        first, second = divmod(number % 10_000, 100)
        note = f"{generator.getrandbits(4 * NOTE_LENGTH):0{NOTE_LENGTH}x}"
        yield {"prompt": f"{first:02}+{second:02}=", "answer": f"{first + second:03}", "note": note}


def write_rows(file: Path, count: int) -> Path:
    if file.suffix == ".parquet":
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
        made = rows(count)
        with parquet.ParquetWriter(file, arrow.schema([(name, arrow.string()) for name in next(rows(1))])) as out:
            while part := [row for row, _ in zip(made, range(ROWS_AT_ONCE), strict=False)]:
                out.write_table(arrow.Table.from_pylist(part))
    else:
        with file.open("w", encoding="utf-8") as out:
            out.writelines(f"{json.dumps(row)}\n" for row in rows(count))
    return file


def measure(form: str, count: int, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    file = write_rows(folder / f"rows.{form}", count)
    size = file.stat().st_size
    words = ["-m", "launcher", "--config", "grpo.yaml", f"train_dataset.path={file}", *SETTINGS]
    watched = watch([sys.executable, *words], folder, {**os.environ, "PYTHONPATH": str(ROOT)}, LIMIT_S)
    directories = list(folder.glob("runs/*/bench"))
    if watched.exit_code or not directories:
        raise SystemExit(f"{count} rows of {form}: exit code {watched.exit_code}\n{watched.output}")
    times = ring_times.ring(directories[0], watched)
    file.unlink()
    return {
        "form": form,
        "rows": count,
        "file_mb": size / 1e6,
        "first_step_s": times["first_step_s"],
        "start": times["start"],
        "memory_mb": {role: used / 1e6 for role, used in sorted(watched.memory.items())},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 1_000_000])
    parser.add_argument("--forms", nargs="+", choices=["jsonl", "parquet"], default=["jsonl", "parquet"])
    parser.add_argument("--output", type=Path, default=ROOT / "build/bench/data.json")
    arguments = parser.parse_args()
    load_before = os.getloadavg()
    measured: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for form in arguments.forms:
            for count in arguments.rows:
                row = measure(form, count, Path(folder) / f"{form}-{count}")
                measured.append(row)
                memory = ", ".join(f"{role} {used:.0f} MB" for role, used in row["memory_mb"].items())
                print(f"{count} rows of {form}: first step after {row['first_step_s']:.1f} s; {memory}", flush=True)
            first, last = measured[-len(arguments.rows)], measured[-1]
            delay_s = last["first_step_s"] - first["first_step_s"]
            print(f"{form}: {last['rows']} rows start {delay_s:.1f} s later than {first['rows']} (aim: {AIM_S:g} s)")
    report = {
        "what": "First step and memory of a run, by number of rows",
        "aim_s": AIM_S,
        "measured": measured,
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_average": {"before": load_before, "after": os.getloadavg()},
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
