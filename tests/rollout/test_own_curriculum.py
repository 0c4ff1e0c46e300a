"""A sampler and gates of the user's own: what they are given, what they may return, and their state in checkpoints."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from areal_like.config.problems import ConfigError
from areal_like.process.errors import FinalFailure
from areal_like.rollout.curriculum.curriculum import Curriculum, curriculum_of
from areal_like.rollout.curriculum.own_code import load_own_curriculum
from areal_like.rollout.curriculum.scored_group import scored_group
from areal_like.rollout.curriculum.settings import CurriculumSettings
from tests.support.rollout_world import World, facts, grpo, settings

OWN = '''
class Worst:
    """The rows with the lowest rewards so far; rows that were not seen yet come first."""

    def __init__(self, first=0):
        self.means, self.first = {}, first

    def draw(self, rows, count, random):
        shuffled = random.permutation(rows).tolist()
        return sorted(shuffled, key=lambda row: (row < self.first, self.means.get(row, -1.0)))[:count]

    def observe(self, group):
        self.means[group.row] = group.mean_reward

    def state(self):
        return sorted(self.means.items())

    def resume(self, state):
        self.means = dict(state)

    def metrics(self):
        return {"seen": len(self.means)}


class InTurn:
    """Counts what it has drawn."""

    def __init__(self):
        self.next = 0

    def draw(self, rows, count, random):
        self.next += count
        return [int(rows[number % len(rows)]) for number in range(self.next - count, self.next)]

    def state(self):
        return self.next

    def resume(self, state):
        self.next = state


class NotTwice:
    """Admits a row once."""

    def __init__(self):
        self.seen = []

    def admits(self, group):
        return group.row not in self.seen

    def observe(self, group):
        self.seen.append(group.row)

    def state(self):
        return self.seen

    def resume(self, state):
        self.seen = state


class Best(Worst):
    pass


class Odd:
    def admits(self, group):
        return group.row % 2 == 1
'''


def own(folder: Path, code: str = OWN, sampler: str = "Worst", gates: tuple[str, ...] = (), **args: Any) -> Any:
    """Makes the curriculum anew at each call, as a process does. A fault is raised."""
    (folder / "own.py").write_text(code)

    def named(name: str, **args: Any) -> Any:
        return SimpleNamespace(name=f"{folder / 'own.py'}:{name}" if name else None, args=args)

    def stop(fault: FinalFailure) -> None:
        raise fault

    def make() -> Curriculum:
        own = replace(grpo().curriculum, sampler=named(sampler, **args), gates=[named(gate) for gate in gates], seed=5)
        run: Any = SimpleNamespace(config=replace(grpo(), curriculum=own), folder=folder, cwd=folder)
        return curriculum_of(CurriculumSettings(), 10, *load_own_curriculum(run, stop))

    return make


def world(make: Callable[[], Curriculum], synchronous: bool = True, **more: Any) -> World:
    rules = CurriculumSettings(has_own_gates=True)
    usual = settings(synchronous=synchronous, max_concurrent=4, total_epochs=20, batch_size=2, curriculum=rules)
    return World(usual, curriculum=make, **more)


def play(world: World, steps: int) -> list[list[int]]:
    """The rows of each step. Answers to a row have its number as their reward."""
    rows = []
    for _ in range(100):
        world.load_all()
        world.lease()
        for lease, _ in list(world.leases.values()):
            world.finish(lease, rewards=[lease.group.row / 10, lease.group.row / 10])
        if (batch := world.train()) is not None:
            rows.append([group.row for group in batch.groups])
        if len(rows) == steps:
            return rows
    raise AssertionError(world.where())


@pytest.mark.shows("curriculum.sampler.name", "curriculum.sampler.args")
def test_a_sampler_chooses_rows_by_what_it_has_seen(tmp_path: Path) -> None:
    played = world(own(tmp_path, first=3))
    rows = play(played, 7)
    seen = [row for step in rows[:3] for row in step]
    assert len(set(seen)) == 6 and min(seen) >= 3
    assert rows[4:] == [[3, 4]] * 3
    assert played.reports[-1][1]["curriculum/own/Worst/seen"] == 7


def test_draws_are_those_of_the_seed_and_leave_out_rows_that_are_too_long(tmp_path: Path) -> None:
    first, again = (play(world(own(tmp_path), too_long=(2, 5)), 4) for _ in range(2))
    assert first == again and sorted(chain(*first)) == [0, 1, 3, 4, 6, 7, 8, 9]


@pytest.mark.shows("curriculum.gates")
@pytest.mark.parametrize("synchronous", [True, False])
def test_a_group_is_trained_on_if_every_gate_admits_it(tmp_path: Path, synchronous: bool) -> None:
    played = world(own(tmp_path, sampler="", gates=("NotTwice", "Odd")), synchronous)
    rows = [*chain(*play(played, 2))]
    assert len(set(rows)) == len(rows) and all(row % 2 for row in rows)
    dropped = [event for event in played.events if event["event"] == "dropped"]
    assert {event["reason"] for event in dropped} == {"difficulty"}


@pytest.mark.parametrize("resumes", [False, True])
def test_a_gate_decides_before_it_observes_also_where_nothing_is_replaced(tmp_path: Path, resumes: bool) -> None:
    keys = settings(refill=False, max_concurrent=4, curriculum=CurriculumSettings(has_own_gates=True))
    played = World(keys, curriculum=own(tmp_path, sampler="", gates=("NotTwice", "Odd")))
    played.load_all()
    leases = played.lease(4)
    for lease in leases:
        played.finish(lease)
    if resumes:
        played.save()
        played.begin()
    odd = [lease.group.row for lease in leases if lease.group.row % 2]
    assert [group.row for group in played.train().groups] == odd and 0 < len(odd) < 4


@pytest.mark.parametrize("synchronous", [True, False])
def test_rows_that_were_chosen_and_not_inspected_yet_are_in_the_checkpoint(tmp_path: Path, synchronous: bool) -> None:
    whole = [*chain(*play(world(own(tmp_path, sampler="InTurn"), synchronous), 4))]
    resumed = world(own(tmp_path, sampler="InTurn"), synchronous)
    first = [*chain(*play(resumed, 1))]
    resumed.load_all()
    assert resumed.loop.lease("episodes/0", 4) == []
    resumed.save()
    resumed.leases.clear()
    resumed.begin()
    assert [*first, *chain(*play(resumed, 3))] == whole


def test_sampler_and_gates_continue_from_a_checkpoint(tmp_path: Path) -> None:
    make = own(tmp_path, gates=("Odd",))
    whole = play(world(make), 5)
    resumed = world(make)
    first = play(resumed, 2)
    resumed.load_all()
    resumed.lease()  # the step has begun when the checkpoint is taken
    resumed.save()
    resumed.leases.clear()
    resumed.begin()
    assert first + play(resumed, 3) == whole


def test_a_checkpoint_is_of_its_sampler_unless_the_curriculum_begins_anew(tmp_path: Path) -> None:
    played = world(own(tmp_path))
    play(played, 2)
    played.save()
    played.curriculum = own(tmp_path, sampler="Best")
    with pytest.raises(ConfigError, match=r"curriculum.sampler: is .*Best, and the checkpoint has .* of .*Worst"):
        played.begin()
    played.begin(forget_curriculum=True)
    played.curriculum = own(tmp_path, sampler="", gates=())
    played.begin()


DRAW = "class Bad:\n    def draw(self, rows, count, random):\n        return {}\n"
GATE = "class Bad:\n    def admits(self, group):\n        return {}\n"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (DRAW.format("[]"), "returned no list of row numbers; return from 1 to 2 of the given rows"),
        (DRAW.format("['a', 'b']"), "returned no list of row numbers"),
        (DRAW.format("[[1], [2, 3]]"), "returned no list of row numbers"),
        (DRAW.format("rows"), "returned 10 rows"),
        (DRAW.format("[3, 3]"), "returned a row twice"),
        (DRAW.format("[3, 10]"), "returned row 10, which was not given"),
        (DRAW.format("{}[count]"), "draw of .*own.py:Bad failed: .*own.py line 3, in draw: KeyError: 2"),
        (DRAW.format("rows[:1]") + "    def metrics(self):\n        return [1]\n", r"metrics of .* returned \[1\]"),
        (
            DRAW.format("rows[:1]") + "    def state(self):\n        return {1, 2}\n    resume = print\n",
            "state of .* cannot be saved as JSON",
        ),
        (
            DRAW.format("rows[:1]") + "    def state(self):\n        return 'a' * 2**24\n    resume = print\n",
            "state of .* has 16777218 bytes of JSON, and may have 16777216",
        ),
    ],
)
def test_what_a_sampler_must_not_return_ends_the_run(tmp_path: Path, code: str, message: str) -> None:
    played = world(own(tmp_path, code, "Bad"))
    with pytest.raises(FinalFailure, match=f"^curriculum.sampler.name: .*{message}"):
        play(played, 2)


@pytest.mark.parametrize(("value", "message"), [("group", "returned ScoredGroup"), ("1 / 0", "ZeroDivisionError")])
def test_what_a_gate_must_not_do_ends_the_run(tmp_path: Path, value: str, message: str) -> None:
    played = world(own(tmp_path, GATE.format(value), "", ("Bad",)))
    with pytest.raises(FinalFailure, match=rf"^curriculum.gates.0.name: admits of .*own.py:Bad .*{message}"):
        play(played, 1)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("class Bad:\n    pass\n", r"has no method draw\(rows, count, random\)"),
        ("class Bad:\n    def draw(self, rows):\n        pass\n", r"is called as draw\(rows, count, random\)"),
        (DRAW.format("rows") + "    def state(self):\n        return 1\n", r"needs both state\(\) and resume\(state\)"),
        ("class Bad:\n    def __init__(self):\n        raise OSError('no')\n", "could not be created: .*OSError: no"),
    ],
)
def test_a_sampler_that_cannot_be_used_is_an_error_of_its_key(tmp_path: Path, code: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        own(tmp_path, code, "Bad")()


def test_a_group_shows_answers_once_for_each_conversation() -> None:
    turns = [{**fact, "conversation": 0, "env": "maze"} for fact in facts(3, [1.0, 0.5], generated=4)]
    group = scored_group(7, [*turns, {**facts(5, [None])[0], "finish": "length", "env": "maze"}])
    assert (group.row, group.environment, group.version) == (7, "maze", 3)
    assert (group.rewards, group.answer_tokens, group.truncated) == ((1.0, None), (8, 3), (False, True))
    assert group.mean_reward == 1.0 and group.parts[0] == {"part": 1.0, "score": 1.0}


def test_random_numbers_of_a_draw_are_those_of_its_number(tmp_path: Path) -> None:
    code = DRAW.format("random.permutation(rows)[:count]")
    rows = [play(world(own(tmp_path, code, "Bad")), 4) for _ in range(2)]
    assert rows[0] == rows[1] and len({tuple(step) for step in rows[0]}) > 1
    assert np.array(rows[0]).shape == (4, 2)
