"""A long run is flat: memory, descriptors and threads of its processes do not grow, and its files not faster and
faster."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.soak import (
    CHARTS,
    DESCRIPTORS,
    FILE,
    FILES,
    MEMORY,
    RUN,
    SHARED,
    SMALL_FILE,
    TEMPORARY,
    WARM_UP,
    all_growth,
)

ROOT = Path(__file__).resolve().parents[2]
STEPS = 1000
MB = 1 << 20


def points(of_step) -> list[tuple[float, float]]:
    return [(step, float(of_step(step))) for step in range(0, STEPS, 10)]


@pytest.mark.parametrize(
    ("what", "of_step", "is_flat"),
    [
        (MEMORY, lambda step: 300 * MB, True),
        (MEMORY, lambda step: 300 * MB + step * MB / 4, False),
        (MEMORY, lambda step: (300 + min(step, WARM_UP * STEPS)) * MB, True),  # caches that fill
        (MEMORY, lambda step: (300 if step % 50 else 600) * MB, True),  # peaks
        (DESCRIPTORS, lambda step: 20 + step // 100, False),
        (DESCRIPTORS, lambda step: 20 + step % 3, True),
        (FILE, lambda step: SMALL_FILE + 100 * step, True),
        (FILE, lambda step: SMALL_FILE + step * step, False),
        (FILE, lambda step: SMALL_FILE + 1000 * max(0, step - 700), False),  # as errors that begin late
        (FILE, lambda step: SMALL_FILE + 1000 * (step > 700), True),  # a few lines
    ],
)
def test_only_what_grows_and_grows_is_not_flat(what, of_step, is_flat) -> None:
    (growth,) = all_growth({(what, "trainer/0"): points(of_step)}, STEPS)
    assert growth.is_flat is is_flat


@pytest.mark.parametrize(("of", "per_step"), [(RUN, 0.05), (RUN, 1.0), (SHARED, 0.05), (TEMPORARY, 1.0)])
def test_a_file_that_each_step_leaves_is_not_flat(of, per_step) -> None:
    (growth,) = all_growth({(FILES, of): points(lambda step: step * per_step)}, STEPS)
    assert growth.is_flat is (of == RUN and per_step < 0.1)


def test_what_ended_or_began_in_the_middle_is_not_judged() -> None:
    early = [point for point in points(lambda step: step * MB) if point[0] < STEPS / 2]
    late = [point for point in points(lambda step: SMALL_FILE + step * step) if point[0] > STEPS / 2]
    assert all_growth({(MEMORY, "gone"): early, (FILE, "new"): late}, STEPS) == []


@pytest.mark.slow
def test_two_hundred_steps_are_flat(tmp_path: Path) -> None:
    output = tmp_path / "soak.json"
    command = [sys.executable, str(ROOT / "tests/bench/soak.py"), "--steps", "200", "--output", str(output)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(output.read_text(encoding="utf-8"))["found"]
    roles = {each["of"] for each in found if each["what"] == MEMORY}
    assert roles >= {"guardian", "launcher", "rollout/0", "episodes/0", "server/0", "trainer/0"}
    assert {each["of"] for each in found if each["what"] == FILES} == {RUN, SHARED, TEMPORARY}
    for what in CHARTS:
        chart = output.with_name(f"soak-{what}.svg").read_text(encoding="utf-8")
        assert chart.startswith("<svg") and "<polyline" in chart
