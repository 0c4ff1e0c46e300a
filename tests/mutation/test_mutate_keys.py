"""The copy of the repository ignores exactly one key, however the configuration is read."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.ignored_key import VARIABLE, copy_repository

PROGRAM = """
import json, sys
from areal_like.config.load import load
from areal_like.process.run import open_run
from tests.support.ring_parts import write_run
from pathlib import Path
loaded = load("grpo.yaml", ["rollout.backend=embedded", *json.loads(sys.argv[1])])
run = open_run(write_run(Path(sys.argv[2]), actor__eps_clip=0.25, gconfig__temperature=0.5))
print(json.dumps([[config.actor.eps_clip, config.gconfig.temperature] for config in (loaded.config, run.config)]))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    copy_repository(folder)
    return folder


def values(copy: Path, folder: Path, key: str, *overrides: str) -> Any:
    command = [sys.executable, "-c", PROGRAM, json.dumps(overrides), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(copy), VARIABLE: key}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_ignored_key_has_its_default_and_others_their_value(copy, tmp_path):
    words = ("actor.eps_clip=0.25", "gconfig.temperature=0.5")
    (tmp_path / "clip").mkdir()
    (tmp_path / "temperature").mkdir()
    assert values(copy, tmp_path / "clip", "actor.eps_clip", *words) == [[0.2, 0.5], [0.2, 0.5]]
    assert values(copy, tmp_path / "temperature", "gconfig.temperature", *words) == [[0.25, 1.0], [0.25, 1.0]]


def test_an_ignored_key_is_not_refused_for_disagreeing_with_another(copy, tmp_path):
    assert values(copy, tmp_path, "actor.temperature", "actor.temperature=0.25")[0] == [0.2, 0.5]
