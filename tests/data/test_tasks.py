"""Built-in tasks: fixed rows, and rewards."""

import itertools
from pathlib import Path

import pytest

from areal_like.config.built_in import PACKAGES, TASK_SIZES, TASKS
from areal_like.config.problems import ConfigError
from areal_like.data.row_format import REQUIRED_FIELDS
from areal_like.data.tasks import TEST, TRAIN, make_task
from areal_like.data.tasks.counting import Counting
from areal_like.data.tasks.generated import GeneratedTask
from areal_like.data.tasks.reversing import Reversing
from areal_like.data.tasks.sorting import Sorting
from areal_like.data.tasks.sums import Sums
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders, load_built_in
from areal_like.models import model_folder
from areal_like.rollout.episodes.rewards.base import RewardCall

KINDS = {name: load_built_in("task", "task.name", name) for name in TASKS if name not in PACKAGES["task"]}
ANSWERS = ("answer", "chosen", "rejected")
DRAWN = {name: kind for name, kind in KINDS.items() if issubclass(kind, GeneratedTask)}


@pytest.fixture(params=KINDS)
def task(request):
    return KINDS[request.param]()


@pytest.mark.parametrize("name", TASKS)
def test_the_plan_knows_how_many_rows_a_task_has_and_how_long_they_are(name):
    for module, _ in PACKAGES["task"].values() if name in PACKAGES["task"] else ():
        pytest.importorskip(module)
    size, rows = TASK_SIZES[name], load_built_in("task", "task.name", name)().rows(TRAIN)
    lengths = [len(row["prompt"]) + max(len(row.get(part, "")) for part in ANSWERS) for row in rows]
    if name in KINDS:
        assert size == (len(rows), max(lengths))
    else:
        assert size.num_rows <= len(rows) < 1.2 * size.num_rows and max(lengths) <= size.characters


def test_no_test_row_is_in_the_training_rows(task):
    train, test = ([row["prompt"] for row in task.rows(split)] for split in (TRAIN, TEST))
    assert len(set(train)) == len(train) and len(set(test)) == len(test)
    assert not set(train) & set(test)
    assert len(train) / len([*train, *test]) == pytest.approx(0.8, abs=0.01)


def test_rows_are_deterministic_and_generated_on_access(task):
    one, other = task.rows(TRAIN), task.rows(TRAIN)
    assert list(one[:50]) == list(other)[:50] == [one[number] for number in range(50)]
    assert one[7] is not one[7]
    assert one[-1] == list(one)[-1]
    with pytest.raises(IndexError):
        one[len(one)]


def test_rows_serve_every_kind_of_training(task):
    for row in itertools.islice(task.rows(TRAIN), 500):
        assert all(isinstance(row[name], str) for names in REQUIRED_FIELDS.values() for name in names)
        assert row["chosen"] == row["answer"] != row["rejected"]


def test_a_rejected_answer_scores_less_than_the_chosen_one_and_rarely_0_where_parts_count(task):
    worths = []
    for row in itertools.islice(task.rows(TRAIN), 300):
        call = RewardCall(task.reward, "reward", {})
        chosen, rejected = (call(row["prompt"], row[name], row) for name in ("chosen", "rejected"))
        if isinstance(task, Sums):  # its model asks a calculator, which has no nearly right results
            assert (chosen, rejected) == (1, 0)
            continue
        assert chosen["score"] == 1 and sum(chosen.values()) - 1 == pytest.approx(1)
        assert rejected["score"] == 0
        worths.append(sum(rejected.values()))
    assert isinstance(task, Sums) or max(worths) < 0.3 < 3 * sum(worths) / len(worths)


def test_the_built_in_models_tokenizer_and_positions_are_enough():
    tokenizer = TextTokenizer(model_folder("builtin:tiny-addition"))
    for name, kind in DRAWN.items():
        for made in (kind(), kind(max_length=24)):
            lengths = [len(tokenizer.encode(row["prompt"] + row["answer"])) + 1 for row in made.rows(TEST)]
            assert max(lengths) <= (48 if made.max_length < 24 else 64), name


@pytest.mark.parametrize(
    ("made", "split", "rows"),
    [
        (Reversing(), TRAIN, {"reverse nxebxhc:": "chxbexn", "reverse kiyyoxer:": "rexoyyik"}),
        (Sorting(), TRAIN, {"sort 721:": "127", "sort 980:": "089"}),
        (Counting(), TRAIN, {"count e in eyd:": "1", "count f in afjjfjjppfp:": "3"}),
    ],
)
def test_the_rows_never_change(made, split, rows):
    """The split never changes, or training rows would become test rows."""
    assert {row["prompt"]: row["answer"] for row in made.rows(split)[:2]} == rows


def test_generated_answers_are_correct():
    for row in Reversing().rows(TEST):
        text = row["prompt"].removeprefix("reverse ").removesuffix(":")
        assert text.islower() and row["answer"] == "".join(reversed(text))
    for row in Sorting().rows(TEST):
        digits = row["prompt"].removeprefix("sort ").removesuffix(":")
        assert digits.isdigit() and [*row["answer"]] == sorted(digits)
    for row in Counting().rows(TEST):
        _, letter, _, word = row["prompt"].removesuffix(":").split()
        assert len(letter) == 1 and int(row["answer"]) == sum(letter == other for other in word)


def test_counts_are_not_all_alike():
    counts = [row["answer"] for row in Counting().rows(TEST)]
    assert all(0.02 < counts.count(str(count)) / len(counts) < 0.5 for count in range(5))


@pytest.mark.parametrize("kind", DRAWN.values())
def test_lengths_and_the_number_of_rows_follow_the_arguments(kind):
    made = kind(min_length=5, max_length=6, num_rows=200)
    rows = [*made.rows(TRAIN), *made.rows(TEST)]
    assert len(rows) == 200
    assert {len(row["prompt"].removesuffix(":").split()[-1]) for row in rows} == {5, 6}


def test_duplicate_draws_count_once():
    made = Sorting(min_length=2, max_length=2, num_rows=1000)
    assert len(made.rows(TRAIN)) + len(made.rows(TEST)) == 100


@pytest.mark.parametrize("kind", DRAWN.values())
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"min_length": 1}, "min_length must be a number from 2 to 24, not 1"),
        ({"max_length": 25}, "max_length must be a number from 2 to 24, not 25"),
        ({"num_rows": True}, "num_rows must be a number from 10 to 100000, not True"),
        ({"num_rows": "10"}, "num_rows must be a number from 10 to 100000, not '10'"),
        ({"min_length": 9, "max_length": 8}, r"min_length must be at most max_length \(8\), not 9"),
    ],
)
def test_impossible_arguments_are_refused(kind, args, message):
    with pytest.raises(ValueError, match=message):
        kind(**args)


def test_a_task_whose_rows_take_no_split_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text("class Base:\n    def rows(self): ...\nclass Mine(Base): ...\n")
    with pytest.raises(
        ConfigError, match=r"^task\.name: rows of mine\.py:Mine takes \(\) and is called as rows\(split\):"
    ):
        make_task("mine.py:Mine", {}, SearchFolders(tmp_path, tmp_path))


def test_an_unknown_split_is_refused(task):
    with pytest.raises(ValueError, match="there is no split 'valid'; there are train and test"):
        task.rows("valid")


@pytest.mark.parametrize(
    ("task", "answer", "completion", "part", "near", "exact"),
    [
        (Reversing(), "dcba", "dcba", "places", 0.3, 1.0),
        (Reversing(), "dcba", "dcab", "places", 0.15, 0.0),
        (Reversing(), "dcba", "dcbax", "places", 0.24, 0.0),
        (Sorting(), "1234", "2134", "places", 0.15, 0.0),
        (Sorting(), "1234", "", "places", 0.0, 0.0),
        (Counting(), "3", "3", "near", 0.3, 1.0),
        (Counting(), "3", "4", "near", 0.15, 0.0),
        (Counting(), "3", "0", "near", 0.075, 0.0),
        (Counting(), "3", "03", "near", 0.3, 0.0),
        (Counting(), "3", "three", "near", 0.0, 0.0),
        (Counting(), "3", "٣", "near", 0.0, 0.0),
        (Counting(), "3", "9" * 5000, "near", 0.0, 0.0),
    ],
)
def test_partial_reward_for_nearly_correct_answers_and_full_for_correct_ones(
    task, answer, completion, part, near, exact
):
    parts = task.reward("", completion, answer)
    assert parts == {part: pytest.approx(near), "exact": pytest.approx(0.7 * exact), "score": exact}


def test_every_task_is_an_option_of_its_group():
    files = {file.stem for file in (Path(__file__).parents[2] / "conf" / "task").glob("*.yaml")}
    assert files >= set(TASKS)
