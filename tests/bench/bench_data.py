"""The first step and the memory of each process, with a thousand and with a million rows.

    python tests/bench/bench_data.py [--rows 1000 1000000] [--forms jsonl parquet saved] [--experiments grpo sft]
        [--output build/bench/data.json]

`saved` is a folder of `save_to_disk` (package datasets). A row has about 300 characters; their length is limited
(train_dataset.max_length). Each number of rows is a run by the real command, of two steps. It never fails because of a
time. CPU time is that of all processes up to the first step; on a machine with other work it says more than the delay.
"""

import argparse
import json
import os
import platform
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from areal_like.observe.reading import JOINED, read_lines  # noqa: E402
from tests.bench import ring_times  # noqa: E402
from tests.bench.report_file import add_output, write_report  # noqa: E402
from tests.bench.watched import watch  # noqa: E402

LIMIT_S, AIM_S, STEPS = 900.0, 3.0, 2
NOTE_LENGTH, ROWS_AT_ONCE = 250, 50_000
FORMS = ["jsonl", "parquet", "saved"]
SETTINGS = (
    *("cluster.fileroot=runs", "trial_name=bench", "train_dataset.max_length=16", "recover.mode=disabled"),
    *("evaluator.freq_steps=null", "valid_dataset=null", f"total_train_steps={STEPS}"),
)
EXPERIMENTS = {"grpo": ("rollout.backend=embedded",), "sft": ("task.name=null",)}
"""Experiment -> its own settings."""


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
            while part := list(islice(made, ROWS_AT_ONCE)):
                out.write_table(arrow.Table.from_pylist(part))
    elif file.suffix == ".saved":
        datasets = import_module("datasets")
        with tempfile.TemporaryDirectory() as cache:
            made_by = {"gen_kwargs": {"count": count}, "cache_dir": cache}
            datasets.Dataset.from_generator(rows, **made_by).save_to_disk(str(file))
    else:
        with file.open("w", encoding="utf-8") as out:
            out.writelines(f"{json.dumps(row)}\n" for row in rows(count))
    return file


def measure(experiment: str, file: Path, count: int, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    own = EXPERIMENTS[experiment]
    words = ["-m", "launcher", "--config", f"{experiment}.yaml", f"train_dataset.path={file}", *SETTINGS, *own]
    watched = watch([sys.executable, *words], folder, {**os.environ, "PYTHONPATH": str(ROOT)}, LIMIT_S)
    directories = list(folder.glob("runs/*/bench"))
    if watched.exit_code or not directories:
        raise SystemExit(f"{experiment}, {file.name}, {count} rows: exit code {watched.exit_code}\n{watched.output}")
    first = next(line["time"] for line in read_lines(directories[0] / JOINED) if "perf/step_s" in line)
    return {
        "experiment": experiment,
        "form": file.suffix.removeprefix("."),
        "rows": count,
        "file_mb": sum(part.stat().st_size for part in (file, *file.rglob("*")) if part.is_file()) / 1e6,
        "first_step_s": first - watched.began,
        "cpu_s": sum(watched.cpu_at(first).values()),
        "start": ring_times.start(directories[0], watched, first),
        "memory_mb": {role: used / 1e6 for role, used in sorted(watched.memory.items())},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 1_000_000])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--experiments", nargs="+", choices=list(EXPERIMENTS), default=list(EXPERIMENTS))
    add_output(parser, "data")
    arguments = parser.parse_args()
    load_before = os.getloadavg()
    measured: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for form in arguments.forms:
            files = [write_rows(Path(folder) / f"{count}.{form}", count) for count in arguments.rows]
            for experiment in arguments.experiments:
                for file, count in zip(files, arguments.rows, strict=True):
                    row = measure(experiment, file, count, Path(folder) / f"{experiment}-{file.name}")
                    measured.append(row)
                    memory = ", ".join(f"{role} {used:.0f} MB" for role, used in row["memory_mb"].items())
                    what = f"{experiment}, {count} rows of {form}"
                    times = f"first step after {row['first_step_s']:.1f} s, {row['cpu_s']:.1f} s of CPU time"
                    print(f"{what}: {times}; {memory}", flush=True)
                first, last = measured[-len(files)], measured[-1]
                delay_s, cpu_s = (last[key] - first[key] for key in ("first_step_s", "cpu_s"))
                later = f"{last['rows']} rows start {delay_s:.1f} s later than {first['rows']} (aim: {AIM_S:g} s)"
                later += f", with {cpu_s:.1f} s more of CPU time"
                print(f"{experiment}, {form}: {later}")
            for file in files:
                shutil.rmtree(file) if file.is_dir() else file.unlink()
    report = {
        "what": "First step and memory of a run, by number of rows",
        "aim_s": AIM_S,
        "measured": measured,
        "python": platform.python_version(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_average": {"before": load_before, "after": os.getloadavg()},
    }
    write_report(report, arguments.output)


if __name__ == "__main__":
    main()
