"""Checks an inference server on a GPU in under eight minutes: stock vLLM or SGLang if installed (`vllm` or `sglang` in
the folder ENGINES, or named by AREAL_LIKE_VLLM_PYTHON, AREAL_LIKE_SGLANG_PYTHON), else our own.

    python tests/gpu/check_serving.py [--engine vllm] [--output build/gpu/serving.json]
    python tests/gpu/check_serving.py --small       # tiny sizes, also on a CPU: only tests the script

Log-probabilities compared with transformers in float32 and bfloat16, weight updates during generation by each
transport, 256 requests during ten updates, and speed. Exit code 1 if a check failed.
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from areal_like.serving.engines.external.installations import find_installation  # noqa: E402
from tests.gpu import serving_checks  # noqa: E402
from tests.gpu.check_gpu import BUDGET_S, Check, machine, run  # noqa: E402
from tests.support.engine_environments import distribution  # noqa: E402
from tests.support.engines import ENGINES  # noqa: E402

CHECKS = {
    "parity": serving_checks.parity,
    "updates": serving_checks.updates,
    "256 in flight, ten updates": serving_checks.in_flight,
    "bfloat16": serving_checks.bfloat16,
    "speed, Qwen3-0.6B": serving_checks.speed,
}


def installed(on_gpu: bool) -> dict[str, str]:
    """Engine -> version. The embedded engine is always available, and last."""
    versions = {}
    for engine in ENGINES[1:]:
        try:
            versions[engine] = find_installation(distribution(engine), None, Path.cwd(), on_gpu).version
        except ValueError:
            continue
    return {**versions, ENGINES[0]: "of this checkout"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny sizes, also without a GPU")
    parser.add_argument("--engine", choices=ENGINES, help="default: the first that is installed")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "build" / "gpu" / "serving.json", help="file of the results"
    )
    arguments = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    if not on_gpu and not arguments.small:
        parser.error("no GPU found; --small runs tiny sizes on the CPU")
    versions = installed(on_gpu)
    engine = arguments.engine or next(iter(versions))
    if engine not in versions:
        parser.error(f"--engine: {engine} is not installed; installed: {', '.join(versions)}")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    with serving_checks.Tiny(engine) as tiny:
        chosen: dict[str, Check] = {f"{engine}: {name}": partial(check, tiny) for name, check in CHECKS.items()}
        checks = run(chosen, device, arguments.small, BUDGET_S)
    facts = {**machine(device), "engine": engine, "engine_version": versions[engine]}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": facts, "small": arguments.small, "checks": checks}
    arguments.output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"{engine} {versions[engine]}; written to {arguments.output}")
    return int(any(row["passed"] is False for row in checks.values()))


if __name__ == "__main__":
    sys.exit(main())
