"""The code of users does not find the run's token at its parents, and no file of a run holds a key."""

from pathlib import Path

import pytest

from tests.ring.start import SHORT, run, running

pytestmark = pytest.mark.xdist_group("ring-1")

WALK = """
import os, stat
from pathlib import Path

def walk(file):
    "Writes all that the files of /proc show of this process and those above it: environments, and open files."
    pid, parts = os.getpid(), []
    while pid > 1:
        parts.append(Path(f"/proc/{pid}/environ").read_bytes())
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if stat.S_ISREG(entry.stat().st_mode):
                    with entry.open("rb") as content:
                        parts.append(content.read(1 << 16))
            except OSError:
                continue
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    Path(file).write_bytes(b"\\n".join(parts))

def reward(prompt, completion, **row):
    walk("seen-by-reward")
    return 0.0
"""
PROGRAM = """
import json, os, sys, urllib.request
from walks import walk
row = json.loads(sys.stdin.readline())
walk("seen-by-agent")
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
body = json.dumps({"prompt": row["prompt"], "max_tokens": 4}).encode()
urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/completions", body, headers)).read()
"""
QUICK = (*SHORT, "evaluator.freq_steps=null", "train_dataset.batch_size=4", "n_samples=2", "total_train_steps=1")


def test_rewards_and_agents_do_not_find_the_token_at_their_parents(tmp_path: Path) -> None:
    (tmp_path / "walks.py").write_text(WALK)
    (tmp_path / "program.py").write_text(PROGRAM)
    words = ("workflow.name=agent", "agent.command=[python, program.py]", "reward.name=walks.py:reward")
    with running(tmp_path, *QUICK, *words) as ring:
        ended = ring.wait()
    assert ended.code == 0, ended.text
    for who in ("reward", "agent"):
        seen = (tmp_path / f"seen-by-{who}").read_bytes()
        assert seen.count(b"AREAL_LIKE_RUN_ID=") > 1, "environments of parents were read"
        assert ring.secret.encode() not in seen


FAULTS = """
import os
import areal_like

def reward(prompt, completion, **row):
    print("reward", dict(os.environ))
    raise RuntimeError(f"no reward with {dict(os.environ)}")

class Judge:
    def __init__(self, api_key):
        self.api_key = api_key
    def __call__(self, prompt, completion, **row):
        print("judge", self.api_key)
        raise RuntimeError(f"the judge refused {self.api_key}")

class Workflow:
    async def run(self, episode, row):
        os.system("env")
        raise RuntimeError(f"no workflow with {dict(os.environ)}")

def loss(logprobs, advantages, loss_mask):
    if logprobs.numel() > 100:  # not on the small example before the first step
        print("loss", dict(os.environ))
        os.write(2, str(dict(os.environ)).encode())
        raise RuntimeError(f"no loss with {dict(os.environ)}")
    return -logprobs * advantages
"""
PLANTED = {
    "environment": "planted-0-environment",
    "file": "planted-1-file",
    "configuration": "planted-2-configuration",
    "referred": "planted-3-referred",
}
"""Words of keys, each of them in each line of its key."""
ENVIRONMENT = "{0} in a 'key'\nof \"several\" lines: {0}\nand a \\ as well: {0}".format(PLANTED["environment"])


def escaped(where: str) -> str:
    """A key that Python and JSON write in other ways."""
    return rf"""{PLANTED[where]} "and" \ it"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("reward.name=faults.py:reward",),
        ("reward.name=faults.py:Judge", "+reward.args.api_key='${oc.env:JUDGE_ACCESS}'"),
        ("workflow.name=faults.py:Workflow",),
        ("actor.loss=faults.py:loss", "train_dataset.batch_size=64"),
    ],
    ids=["reward", "judge", "workflow", "trainer"],
)
def test_no_file_of_a_failed_run_has_a_key(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "faults.py").write_text(FAULTS)
    (tmp_path / "keys.env").write_text(f"JUDGE_URL={escaped('file')}\n")
    given = ("launcher.env_file=[keys.env]", f"stats_logger.swanlab.api_key='{escaped('configuration')}'")
    keys = (*given, "stats_logger.wandb.wandb_api_key='${oc.env:JUDGE_ACCESS}'")
    ended = run(tmp_path, *QUICK, *keys, *words, SERVICE_API_KEY=ENVIRONMENT, JUDGE_ACCESS=escaped("referred"))
    assert ended.code == 1, ended.text
    assert words[0] != "reward.name=faults.py:Judge" or "the judge refused <secret>" in ended.text
    found = [
        f"{path.name}: {where}"
        for path in [*ended.directory.rglob("*"), *(tmp_path / "state").rglob("*")]
        if path.is_file()
        for where, key in PLANTED.items()
        if key.encode() in path.read_bytes()
    ]
    assert found == []
    assert not [where for where, key in PLANTED.items() if key in ended.out + ended.err]
