"""How a job on Slurm stops: the script runs with stand-ins for Slurm's commands."""

import signal
import subprocess
import time

import pytest

from tests.launcher.clusters.test_clusters import TWO_NODES, options, script_of

SRUN = """#!/bin/bash
for word in "$@"; do case $word in --job-name=*) role=${word#*=};; esac; done
echo $$ > "$STATE/$role.pid"
if [[ $role == trainer ]]; then trap "$ON_TERM" TERM; else trap 'exit 0' TERM; fi
while :; do sleep 0.05; done
"""
SCANCEL = """#!/bin/bash
kind=${1#*=}
echo "$kind $2" >> "$STATE/signals"
if [[ $2 == 7.3 ]]; then kill -"$kind" "$(cat "$STATE/trainer.pid")"; else
for file in "$STATE"/*.pid; do kill -"$kind" "$(cat "$file")" 2> /dev/null; done; fi
exit 0
"""
COMMANDS = {
    "srun": SRUN,
    "scancel": SCANCEL,
    "squeue": "#!/bin/bash\necho '7.3 trainer'\n",
    "scontrol": '#!/bin/bash\nif [[ $1 == show ]]; then printf "a\\nb\\n"; else echo "$1" >> "$STATE/requeued"; fi\n',
}


def stopped(folder, number, on_term, grace_s):
    """The ended script, and the signals that it sent."""
    for name, text in COMMANDS.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "STATE": str(folder), "ON_TERM": on_term}
    environment |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a,b", "AREAL_LIKE_TOKEN": "t", "TMPDIR": str(folder)}
    script = script_of(*TWO_NODES, f"recover.grace_s={grace_s}")
    process = subprocess.Popen(["bash", "-c", script], env=environment, start_new_session=True)
    ends = time.monotonic() + 60
    while not (folder / "trainer.pid").exists() or not (folder / "trainer.pid").read_text():
        assert time.monotonic() < ends and process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    return process.wait(60), (folder / "signals").read_text().splitlines()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_warning_stops_the_trainer_first_and_requeues_the_job(tmp_path, number):
    code, signals = stopped(tmp_path, number, "exit 75", 100)
    assert (code, signals) == (75, ["TERM 7.3", "TERM 7"])
    assert (tmp_path / "requeued").read_text() == "requeue\n"


@pytest.mark.shows("recover.grace_s")
def test_a_step_that_takes_longer_than_the_grace_time_is_abandoned(tmp_path):
    code, signals = stopped(tmp_path, signal.SIGTERM, "", 0.2)
    assert (code, signals) == (75, ["TERM 7.3", "KILL 7.3", "TERM 7"])
    assert (tmp_path / "requeued").exists()


def test_a_trainer_that_fails_while_it_stops_is_not_started_again(tmp_path):
    code, signals = stopped(tmp_path, signal.SIGTERM, "exit 1", 100)
    assert (code, signals[0]) == (1, "TERM 7.3")
    assert not (tmp_path / "requeued").exists()


def test_slurm_gives_notice_a_minute_before_the_grace_time_begins():
    assert options(script_of(*TWO_NODES, "recover.grace_s=1000.5"))["signal"] == "B:TERM@1061"
