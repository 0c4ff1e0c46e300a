"""Optimizations of the trainer: packed rows, log-probabilities in chunks, and a whole training step compared with that
of transformers' Trainer.

    python tests/bench/bench_training.py [--threads 1] [--output build/bench/training.json]

Ratios are of CPU time, which other load on the machine affects less. It never fails because of a time.
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench import training_logprobs, training_packing, training_trainer  # noqa: E402
from tests.bench.report_file import add_output, write_report  # noqa: E402

AIMS = {"packed": 2.5, "chunked_time": 1.1, "chunked_memory_gb": 0.5}
"""Minimum speed-up of packed rows; maximum relative time and extra memory of chunks."""


def measure(small: bool = False) -> dict[str, Any]:
    """`small`: tiny sizes, as a test of this program."""
    results: dict[str, Any] = {}
    if small:
        results["packing"] = training_packing.measure(4, 4, 16, repeats=2)
        results["logprobs"] = training_logprobs.measure(64, 128, 16)
        results["step"] = [training_trainer.measure("tiny", training_trainer.TINY, [4, 6, 9], steps=2)]
        return results
    results["packing"] = training_packing.measure()
    results["logprobs"] = training_logprobs.measure()
    tiny, smollm2 = training_trainer.TINY, training_trainer.SMOLLM2
    results["step"] = [
        training_trainer.measure("tiny, sums", tiny, training_trainer.addition_lengths(128), steps=20),
        training_trainer.measure("tiny, 16 to 128 tokens", tiny, training_trainer.short_lengths(32), steps=5),
        training_trainer.measure("SmolLM2-135M", smollm2, training_trainer.short_lengths(6), steps=2),
    ]
    return results


def report(results: dict[str, Any], threads: int, took_s: float) -> dict[str, Any]:
    packing, logprobs = results["packing"], results["logprobs"]
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": threads,
        "cpu_count": os.cpu_count(),
        "load_average": os.getloadavg(),
        "took_s": took_s,
        **results,
        "aims": {
            "packed": {"aim": AIMS["packed"], "met": packing["times_faster"] >= AIMS["packed"]},
            "chunked_time": {"aim": AIMS["chunked_time"], "met": logprobs["times_as_long"] <= AIMS["chunked_time"]},
            "chunked_memory_gb": {
                "aim": AIMS["chunked_memory_gb"],
                "met": logprobs["extra_memory_gb"]["chunked"] <= AIMS["chunked_memory_gb"],
            },
        },
    }


def table(results: dict[str, Any]) -> str:
    packing, logprobs = results["packing"], results["logprobs"]
    aims = {name: "" if row["met"] else f"   aim {row['aim']}: missed" for name, row in results["aims"].items()}
    lines = [
        f"{'':<58}{'theirs':>10}{'ours':>10}{'ratio':>8}",
        _line("padded and packed rows, CPU s", packing["seconds"], packing["times_faster"], aims["packed"]),
        _line("all logits and chunks, CPU s", logprobs["seconds"], logprobs["times_as_long"], aims["chunked_time"]),
        _line("  extra memory, GB", logprobs["extra_memory_gb"], None, aims["chunked_memory_gb"]),
    ]
    for row in results["step"]:
        what = f"Trainer's and our step, tokens/CPU s: {row['model']}"
        lines.append(_line(what, row["tokens_per_s"], row["times_faster"], ""))
    gaps = [packing["largest_gradient_difference"], *logprobs["largest_difference"].values()]
    lines.append(f"largest relative difference of a gradient or log-probability: {max(gaps):.1e}")
    load = f"load {results['load_average'][0]:.1f} on {results['cpu_count']} cores"
    lines.append(f"{load}; took {results['took_s']:.0f} s")
    return "\n".join(lines)


def _line(what: str, both: Mapping[str, float], ratio: float | None, note: str) -> str:
    theirs, ours = both.values()
    text = "" if ratio is None else f"{ratio:.2f}"
    return f"{what:<58}{theirs:>10.3g}{ours:>10.3g}{text:>8}{note}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--small", action="store_true", help="tiny sizes: only tests the program")
    add_output(parser, "training")
    arguments = parser.parse_args()
    if arguments.threads < 1:
        parser.error("--threads: at least 1")
    torch.set_num_threads(arguments.threads)
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    began = time.perf_counter()
    results = measure(arguments.small)
    results = report(results, arguments.threads, time.perf_counter() - began)
    print(table(results))
    write_report(results, arguments.output)


if __name__ == "__main__":
    main()
