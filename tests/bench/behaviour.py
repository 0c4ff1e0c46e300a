"""Records what a checkout does, to show that a change alters nothing.

    python tests/bench/behaviour.py record DIR [--checkout ROOT]   runs the checkout and writes its behaviour to DIR
    python tests/bench/behaviour.py compare BEFORE AFTER           prints each difference; exit code 1 if there is one

Recorded: the hashes of the weights after four synchronous steps (grpo.yaml, ppo.yaml, two trainer ranks, LoRA) with the
metrics and the event ledger of each, without times; `--cfg`, `--dry-run=json` and `--dry-run` of every experiment, of
every group option and of AReaL's files; and `--explain` of a few keys.
Weights are the same bits only on the same machine, so record both sides there.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SYNCHRONOUS = ("rollout.max_head_offpolicyness=0", "total_train_steps=4", "train_dataset.batch_size=16", "seed=3")
RUNS = {
    "grpo": ("grpo.yaml", *SYNCHRONOUS),
    "grpo_two_ranks": ("grpo.yaml", *SYNCHRONOUS, "allocation_mode=embedded:d1+fsdp:d2"),
    "grpo_lora": ("grpo.yaml", *SYNCHRONOUS, "actor.use_lora=true", "actor.lora_rank=8"),
    "ppo": ("ppo.yaml", *SYNCHRONOUS),
    "sft": ("sft.yaml", "total_train_steps=4", "seed=3"),
}
# Metrics that differ between two runs of the same code.
MOVING = re.compile(r"(_s|_seconds|per_second|time|tokens_per|perf/|memory|timeperf|/busy|_bytes)")
EXPLAINED = ("actor.lr", "gconfig.n_samples", "rollout.max_head_offpolicyness", "critic.path", "evaluator.freq_steps")


def environment(root: Path, state: Path) -> dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {
        **os.environ,
        **threads,
        "PYTHONPATH": str(root),
        "XDG_STATE_HOME": str(state),
        "NO_COLOR": "1",
        "COLUMNS": "120",
    }


def command(root: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "launcher", *arguments],
        cwd=folder, env=environment(root, folder / "state"), capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip


def plain(text: str, folder: Path, root: Path) -> str:
    """The text without paths and names of modules, which differ between equivalent checkouts."""
    text = text.replace(str(folder), "<folder>").replace(str(root), "<root>")
    text = re.sub(r"\bareal_like(?:[./]\w+)+(?:\.py|\.lock)?", "<module>", text)
    return re.sub(r"\d+(\.\d+)? (GiB|MiB|GB|TB) free", "<free>", text)


def run_facts(root: Path, folder: Path, arguments: tuple[str, ...]) -> dict[str, Any]:
    done = command(
        root, folder, "--config", *arguments, f"cluster.fileroot={folder}", "experiment_name=e", "trial_name=t"
    )
    if done.returncode != 0:
        return {"exit": done.returncode, "output": plain(done.stdout + done.stderr, folder, root)[-3000:]}
    run = folder / "e" / "t"
    checkpoint = max((run / "checkpoints").glob("step_*"))
    weights = {
        str(file.relative_to(checkpoint)): content_hash(file) for file in sorted(checkpoint.rglob("*.safetensors"))
    }
    metrics = [
        {k: v for k, v in json.loads(line).items() if not MOVING.search(k)}
        for line in (run / "metrics.jsonl").read_text().splitlines()
    ]
    return {"exit": 0, "weights": weights, "metrics": metrics, "ledger": list(ledger(run)), "files": files_of(run)}


def content_hash(file: Path) -> str:
    """The hash of a safetensors file, independent of the order of its metadata."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8 : 8 + size]), sort_keys=True).encode()
    return hashlib.sha256(header + data[8 + size :]).hexdigest()


def ledger(run: Path) -> Iterator[Any]:
    """All events, sorted by group: the order of concurrent groups is not deterministic."""
    events: dict[str, list[Any]] = {}
    for file in sorted((run / "rollouts").glob("*.jsonl")) if (run / "rollouts").is_dir() else []:
        for line in file.read_text().splitlines():
            event = json.loads(line)
            kept = {
                k: v for k, v in event.items() if k not in ("time", "at", "worker", "server", "lease", "seconds", "pid")
            }
            kept = {k: v for k, v in kept.items() if not (isinstance(v, float) and k.endswith("_s"))}
            events.setdefault(f"{file.name} {kept.get('group', '')}", []).append(kept)
    for name in sorted(events):
        yield [name, *events[name]]


def files_of(run: Path) -> list[str]:
    return sorted({re.sub(r"\d+", "N", str(f.relative_to(run))) for f in run.rglob("*") if f.is_file()})


def plans(root: Path, folder: Path) -> Iterator[tuple[str, str]]:
    bases = {file.stem: ["--config", file.name] for file in sorted((root / "experiments").glob("*.yaml"))}
    areal = next(iter(sorted(root.glob("tests/**/areal_files"))))
    for file in sorted(areal.glob("*.yaml")):
        bases[f"areal/{file.stem}"] = ["--config", str(file)]
    for group in sorted(p for p in (root / "conf").iterdir() if p.is_dir() and p.name != "experiment"):
        for option in sorted(group.glob("*.yaml")):
            base = "ppo.yaml" if group.name == "critic" else "grpo.yaml"
            bases[f"{group.name}={option.stem}"] = ["--config", base, f"{group.name}={option.stem}"]
    for name, arguments in bases.items():
        for flag in ("--cfg", "--dry-run=json", "--dry-run"):
            done = command(root, folder, *arguments, flag, "trial_name=t")
            yield f"{name} {flag}", f"exit {done.returncode}\n{plain(done.stdout + done.stderr, folder, root)}"
    for key in EXPLAINED:
        base = "ppo.yaml" if key.startswith("critic") else "grpo.yaml"
        done = command(root, folder, "--config", base, "--explain", key)
        yield f"explain {key}", f"exit {done.returncode}\n{plain(done.stdout + done.stderr, folder, root)}"


def record(out: Path, root: Path, only: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        # Plans contain paths, so both sides need folders with names of equal length.
        folder = Path(name)
        if only in ("", "runs"):
            for run, arguments in RUNS.items():
                place = folder / run
                place.mkdir()
                (out / f"run_{run}.json").write_text(
                    json.dumps(run_facts(root, place, arguments), indent=1, sort_keys=True)
                )
                shutil.rmtree(place, ignore_errors=True)
                print(f"recorded the run {run}", flush=True)
        if only in ("", "plans"):
            texts = dict(plans(root, folder))
            (out / "plans.json").write_text(json.dumps(texts, indent=1, sort_keys=True))
            print(f"recorded {len(texts)} plans")


def compare(before: Path, after: Path) -> int:
    differing = 0
    for file in sorted({f.name for f in before.glob("*.json")} | {f.name for f in after.glob("*.json")}):
        both = []
        for side in (before, after):
            both.append(json.loads((side / file).read_text()) if (side / file).exists() else {})
        for key in sorted(both[0].keys() | both[1].keys()):
            one, other = (json.dumps(b.get(key), indent=1, sort_keys=True).replace("\\n", "\n") for b in both)
            if one != other:
                differing += 1
                print(f"== {file} {key}")
                lines = zip(one.splitlines(), other.splitlines(), strict=False)
                shown = [(a, b) for a, b in lines if a != b][:4]
                for a, b in shown:
                    print(f"  - {a[:300]}\n  + {b[:300]}")
    print(f"{differing} differences")
    return 1 if differing else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("--checkout", type=Path, default=ROOT)
    recording.add_argument("--only", choices=("runs", "plans"), default="")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "compare":
        return compare(arguments.before, arguments.after)
    record(arguments.out.resolve(), arguments.checkout.resolve(), arguments.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
