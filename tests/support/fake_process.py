"""A fake process of a run: registers, makes steps and checkpoints, and fails as FAKE_PROCESS demands.

`python -m tests.support.fake_process ROLE`, with the environment that the launcher gives. FAKE_PROCESS holds, as JSON,
the number of steps, seconds per step, whether checkpoints are `resumable`, keys of `etcd` if that holds the names, and
faults:
{"trainer/0 1.1": {"step": 3, "do": "kill"}} kills the first incarnation of the first attempt's trainer after three
steps.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from areal_like.process import pulse
from areal_like.process.errors import DamagedWeights
from areal_like.process.identity import Identity, identity

BEHAVIOUR: dict[str, Any] = json.loads(os.environ.get("FAKE_PROCESS", "{}"))
DIRECTORY = Path(os.environ["AREAL_LIKE_RUN_DIR"])
STOP, FINISHED, GO = DIRECTORY / "stop", DIRECTORY / "finished", DIRECTORY / "go"


def main() -> int:
    pulse.open_pulse()
    with pulse.phase(pulse.LOADING) as slot:
        return _work(slot)


def _work(slot: pulse.PulseSlot) -> int:
    me = identity()
    print(f"{me.name} of attempt {me.attempt}, incarnation {me.incarnation}", flush=True)
    fault = BEHAVIOUR.get("faults", {}).get(f"{me.name} {me.attempt}.{me.incarnation}", {})
    if "step" not in fault:
        _do(fault.get("do", ""), me)
    signal.signal(signal.SIGTERM, lambda *_: STOP.touch() if me.role in ("rollout", "trainer") else sys.exit(0))
    if me.role in ("server", "rollout"):
        from areal_like.config.sections.cluster import NameResolveConfig
        from areal_like.discovery import announce, etcd_name_store, file_name_store

        root = os.environ["FAKE_PROCESS_NAMES"]
        prefix = "/".join([os.environ["FAKE_PROCESS_USER"], *DIRECTORY.parts[-2:]])
        if "etcd" in BEHAVIOUR:
            names = etcd_name_store(NameResolveConfig(**BEHAVIOUR["etcd"]), Path(), prefix, me.name)
        else:
            names = file_name_store(root, prefix, me.name, 30.0)
        announce(names, me, "127.0.0.1:1")
    if me.role == "trainer":
        with pulse.phase(pulse.STEP):
            return _train(me, fault)
    slot.become(pulse.SERVING, slot.depth)
    began = time.monotonic()
    while not (me.role == "rollout" and FINISHED.exists()):
        if "after_s" in fault and time.monotonic() - began > fault["after_s"]:
            _do(fault["do"], me)
        pulse.advance()
        time.sleep(0.02)
    return 0


def _train(me: Identity, fault: dict[str, Any]) -> int:
    start = json.loads((DIRECTORY / "attempt.json").read_text())
    step: int = start["step"]
    while step < BEHAVIOUR.get("steps", 6):
        time.sleep(BEHAVIOUR.get("step_s", 0.05))
        step += 1
        pulse.advance()
        for name, metric in (("rollout-0", "reward/mean"), ("trainer-0", "train/loss")):
            with (DIRECTORY / "metrics" / f"{name}.jsonl").open("a") as file:
                file.write(json.dumps({"step": step, "attempt": me.attempt, "time": time.time(), metric: 1.0}) + "\n")
        if fault.get("step") == step:
            _do(fault["do"], me)
        if STOP.exists():
            _checkpoint(step)
            FINISHED.touch()
            return 75
        if step % 2 == 0 and BEHAVIOUR.get("resumable", True):
            _checkpoint(step)
    FINISHED.touch()
    return 0


def _checkpoint(step: int) -> None:
    from areal_like.process.checkpoint_files import write_manifest

    folder = DIRECTORY / "checkpoints" / f"step_{step:06d}"
    half = folder.with_name(f".{folder.name}")
    shutil.rmtree(half, ignore_errors=True)  # of one that was killed in between
    half.mkdir(parents=True)
    (half / "config.json").write_text("{}")
    if BEHAVIOUR.get("resumable", True):
        (half / "resume").mkdir()
        (half / "resume" / "state").write_text(str(step))
    write_manifest(half, step)
    half.rename(folder)


def _do(what: str, me: Identity) -> None:
    """`kill`, `exit N`, `say WORDS`, `refuse WORDS`, `fail WORDS`, `give_up WORDS`, `damage WORDS`, `wait` (for
    GO), `hang`, `orphan`, or nothing."""
    word, _, rest = what.partition(" ")
    if word == "wait":
        while not GO.exists():
            pulse.waits("batch 5 from rollout/0", "rollout/0", "rollout.request_timeout", 3600.0)
            time.sleep(0.02)
    elif word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif word == "exit":
        raise SystemExit(int(rest))
    elif word == "say":
        print(rest, flush=True)
        raise SystemExit(1)
    elif word in ("refuse", "fail", "give_up", "damage"):
        kind = {"refuse": "config", "give_up": "final", "damage": DamagedWeights(3, rest).kind}.get(word, "failed")
        note = {"time": time.time(), "message": rest, "kind": kind}
        (DIRECTORY / "logs" / f"{me.start_name}.failure.json").write_text(json.dumps(note))
        raise SystemExit(2 if word == "refuse" else 1)
    elif word == "hang":
        print("loading the model", flush=True)
        time.sleep(3600)
    elif word == "orphan":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
        memory = Path(f"/dev/shm/areal-like.{os.getuid()}.{json.loads((DIRECTORY / 'run.json').read_text())['run_id']}")
        (memory / "weights").write_text("w")


if __name__ == "__main__":
    raise SystemExit(main())
