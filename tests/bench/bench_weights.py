"""Time to publish and load weights, compared with a plain copy of the same bytes in memory.

    python tests/bench/bench_weights.py [--megabytes 270] [--repeats 5] [--output build/bench/weights.json]

One thread; steps are interleaved. Ratios of steps are of CPU time, which other load on the machine affects less; those
of whole transports, between two processes, are of wall time. It never fails because of a time.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from areal_like.process.run_memory import SHARED_MEMORY  # noqa: E402
from areal_like.weights.disk import load_version, publish_weights, remove_versions  # noqa: E402
from areal_like.weights.fingerprint import compare, tensor_hash  # noqa: E402
from tests.bench import weights_transports  # noqa: E402
from tests.bench.report_file import add_output, write_report  # noqa: E402
from tests.bench.weights_transports import COPY, make_model  # noqa: E402

KEPT = 3


class Times:
    """Wall and CPU seconds of each repetition of each step."""

    def __init__(self) -> None:
        self.wall_s: dict[str, list[float]] = {}
        self.cpu_s: dict[str, list[float]] = {}

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall_s.setdefault(what, []).append(time.perf_counter() - wall)
        self.cpu_s.setdefault(what, []).append(time.process_time() - cpu)


def measure(folder: Path, tensors: dict[str, Tensor], repeats: int) -> Times:
    expected = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    standby = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    times = Times()
    for version in range(repeats):
        with times(COPY):
            stage(tensors, standby)
        with times("publish"):
            path = publish_weights(folder, version, tensors.items(), None, "bench")
        with times("load and verify"):
            loaded = load_version(path, expected, version - 1)
        with times("copy what was loaded"):
            stage(loaded.tensors, standby)
        with times("hash what is in use"):
            compare(loaded.hashes, {name: tensor_hash(tensor) for name, tensor in standby.items()}, version)
        del loaded
        remove_versions(folder, keep=set(range(version - KEPT + 1, version + 1)))
    return times


def stage(source: dict[str, Tensor], standby: dict[str, Tensor]) -> None:
    for name, tensor in source.items():
        standby[name].copy_(tensor)


def report(times: Times, tensors: dict[str, Tensor], folder: Path, transports: dict[str, Any]) -> dict[str, Any]:
    cpu_s = {what: median(seconds) for what, seconds in times.cpu_s.items()}
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu_count": os.cpu_count(),
        "load_average": os.getloadavg(),
        "folder": str(folder.parent.parent),
        "num_bytes": sum(tensor.nbytes for tensor in tensors.values()),
        "num_tensors": len(tensors),
        "steps": {
            what: {
                "wall_s": median(times.wall_s[what]),
                "cpu_s": cpu_s[what],
                "times_copy": cpu_s[what] / cpu_s[COPY],
                "runs_s": times.wall_s[what],
            }
            for what in cpu_s
        },
        "transports": transports,
    }


def table(results: dict[str, Any]) -> str:
    lines = [f"{'':<24}{'median s':>10}{'CPU s':>9}{'x copy':>9}"]
    for what, row in results["steps"].items():
        lines.append(f"{what:<24}{row['wall_s']:>10.4f}{row['cpu_s']:>9.4f}{row['times_copy']:>9.2f}")
    lines.append(f"{'':<24}{'stall s':>10}{'x copy':>9}{'served s':>10}{'x copy':>9}")
    for what in ("disk", "collective"):
        row = results["transports"][what]
        stall, served = row["stall_s"], row["published_to_served_s"]
        times = row["stall_times_copy"], row["published_to_served_times_copy"]
        lines.append(f"{what:<24}{stall:>10.4f}{times[0]:>9.2f}{served:>10.4f}{times[1]:>9.2f}")
    size = f"{results['num_bytes'] / 1e6:.0f} MB in {results['num_tensors']} tensors, through {results['folder']}"
    lines.append(f"{size}; load {results['load_average'][0]:.1f} on {results['cpu_count']} cores")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=270, help="size of the weights")
    parser.add_argument("--repeats", type=int, default=5, help="publications; the median is reported")
    add_output(parser, "weights")
    arguments = parser.parse_args()
    if arguments.repeats < 1 or arguments.megabytes < 1:
        parser.error("--repeats, --megabytes: at least 1")
    torch.set_num_threads(1)
    tensors = make_model(arguments.megabytes * 1_000_000)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None) as name:
        folder = Path(name) / "weights"
        steps = measure(folder, tensors, arguments.repeats)
        transports = weights_transports.measure(folder, arguments.megabytes, arguments.repeats)
        results = report(steps, tensors, folder, transports)
    print(table(results))
    write_report(results, arguments.output)


if __name__ == "__main__":
    main()
