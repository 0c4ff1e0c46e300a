"""Checks the trainer on a GPU in under eight minutes: parity with the CPU in float32 and bfloat16, its attention
kernel, compiled layers; tokens per second, utilisation and memory of a Qwen3-0.6B.

    python tests/gpu/check_gpu.py [--output build/gpu/checks.json]
    python tests/gpu/check_gpu.py --small       # tiny sizes, also on a CPU: only tests the script

Exit code 1 if a check failed. The JSON holds the machine and the versions.
"""

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from areal_like.config.sections.train_engine import CompileConfig  # noqa: E402
from tests.gpu import checks  # noqa: E402
from tests.gpu.throughput import PUBLISHED, throughput  # noqa: E402
from tests.support.training_runs import section  # noqa: E402

BUDGET_S = 440.0
"""No check begins later than this."""

Check = Callable[[torch.device, bool], dict[str, Any]]

ONE_LONG, SHORT = [16384], [2048] * 8
"""Both are 16k tokens. A long sequence needs more attention."""

KEEPS: dict[str, Any] = {"gradient_checkpointing": False}
"""Activations are kept for the backward pass instead of computed again."""
COMPILED = {**KEEPS, "compile": section(CompileConfig)}

CHECKS: dict[str, Check] = {
    "parity with the CPU": checks.parity,
    "bfloat16": checks.bf16,
    "varlen attention": checks.varlen,
    "step, one of 16k": partial(throughput, lengths=ONE_LONG),
    "step, eight of 2k": partial(throughput, lengths=SHORT),
    "step, one of 16k, activations kept": partial(throughput, lengths=ONE_LONG, **KEEPS),
    "step, eight of 2k, activations kept": partial(throughput, lengths=SHORT, **KEEPS),
    "compiled layers": checks.compiled,
    "step, one of 16k, compiled": partial(throughput, lengths=ONE_LONG, **COMPILED),
    "step, eight of 2k, compiled": partial(throughput, lengths=SHORT, **COMPILED),
}


def run(chosen: Mapping[str, Check], device: torch.device, small: bool, budget_s: float) -> dict[str, Any]:
    """Runs the checks in order; after a failure the others still run."""
    began = time.perf_counter()
    results: dict[str, Any] = {}
    for name, check in chosen.items():
        started = time.perf_counter()
        if started - began > budget_s:
            results[name] = {"passed": None, "error": f"left out: the limit of {budget_s:.0f} s is reached"}
        else:
            try:
                results[name] = check(device, small)
            except Exception as fault:  # drivers, kernels and compilers raise anything; it is the result
                traceback.print_exc()
                results[name] = {"passed": False, "error": f"{type(fault).__name__}: {fault}"[:2000]}
            gc.collect()
        results[name]["took_s"] = time.perf_counter() - started
        print(line(name, results[name]), flush=True)
    return results


def line(name: str, row: dict[str, Any]) -> str:
    verdict = {True: "ok", False: "FAILED", None: "-"}[row["passed"]]
    parts = [f"{verdict:<7}{name:<40}{row['took_s']:6.1f} s"]
    if "error" in row:
        parts.append(row["error"].splitlines()[0][:120])
    if "tokens_per_s" in row:
        parts.append(f"{row['tokens_per_s']:.0f} tokens/s")
        parts += [f"MFU {100 * row['mfu']:.1f}%"] if row["mfu"] is not None else []
        parts += [f"{row['peak_memory_gb']:.1f} GB"] if "peak_memory_gb" in row else []
    if "logprob_off_max" in row:
        parts.append(f"log-probabilities off by {row['logprob_off_max']:.1e}, gradients by {row['gradient_off']:.1e}")
    return "  ".join(parts)


def machine(device: torch.device) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "device": device.type,
        "cpu_count": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": _output("git", "-C", str(ROOT), "rev-parse", "HEAD"),
    }
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        facts |= {
            "gpu": about.name,
            "capability": f"{about.major}.{about.minor}",
            "memory_gb": about.total_memory / 1e9,
            "cuda": torch.version.cuda,
            "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        }
    return facts


def _output(*words: str) -> str | None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny sizes, also without a GPU")
    parser.add_argument("--only", metavar="WORD", help="only checks with this in their names")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "build" / "gpu" / "checks.json", help="file of the results"
    )
    arguments = parser.parse_args()
    chosen = {name: check for name, check in CHECKS.items() if not arguments.only or arguments.only in name}
    if not chosen:
        parser.error(f"--only: no match; the checks are {', '.join(CHECKS)}")
    if not torch.cuda.is_available() and not arguments.small:
        parser.error("no GPU found; --small runs tiny sizes on the CPU")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    began = time.perf_counter()
    results = run(chosen, device, arguments.small, BUDGET_S)
    took_s = time.perf_counter() - began
    report = {"machine": machine(device), "small": arguments.small, "took_s": took_s}
    report |= {"published": PUBLISHED, "checks": results}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"took {took_s:.0f} s; written to {arguments.output}")
    return int(any(row["passed"] is False for row in results.values()))


if __name__ == "__main__":
    sys.exit(main())
