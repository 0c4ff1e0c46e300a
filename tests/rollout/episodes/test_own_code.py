"""The code of docs/own-task.md and docs/rewards.md does what the pages describe, in a worker."""

import asyncio
import inspect
import re

import pytest

from areal_like.config.built_in import BUILT_IN
from areal_like.config.checks.built_in_code import built_in_arguments
from areal_like.config.load import load
from areal_like.data.datasets import load_datasets
from areal_like.data.row_table import hash_text
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders, load_built_in
from areal_like.models import model_folder
from areal_like.process.http import HttpClient
from areal_like.process.identity import Identity
from areal_like.rollout.episodes.episode import WorkerTools
from areal_like.rollout.episodes.generation_client import GenerationClient
from areal_like.rollout.episodes.rewards import RewardSpec, load_reward
from areal_like.rollout.episodes.rewards.pool import RewardPool
from areal_like.rollout.episodes.runner import EpisodeRunner
from areal_like.rollout.episodes.workflows import make_workflow
from areal_like.rollout.trajectory import unpack_group
from tests.support.commands import REPOSITORY
from tests.support.ring_parts import SECRET, lease, open_server

PAGE, REWARDS = ((REPOSITORY / "docs" / name).read_text() for name in ("own-task.md", "rewards.md"))


@pytest.fixture
def page(tmp_path):
    """A folder with the files of both pages in it."""
    for text in re.findall(r"```(?:python|yaml)\n(.*?)```", PAGE + REWARDS, flags=re.S):
        named = re.match(r"# (\S+)\n", text)
        assert named
        (tmp_path / named[1]).write_text(text)
    return tmp_path


def test_a_task_takes_less_than_40_lines(page):
    assert len((page / "modular.py").read_text().splitlines()) < 40


def test_the_task_of_the_page_is_loaded_run_and_rewarded(page):
    config = load(page / "modular.yaml").config
    places = SearchFolders(page, page)
    tokenizer = TextTokenizer(model_folder(config.tokenizer_path))
    datasets = load_datasets(config, places, tokenizer)
    train, valid = ({row["prompt"] for row in rows.rows} for rows in (datasets.of("train"), datasets.of("valid")))
    assert len(train) + len(valid) == 10000 and not train & valid
    row = datasets.train.rows[0]

    async def nowhere(lease: str, gone: str) -> str:
        raise AssertionError(f"{gone} is there")

    async def main():
        spec = RewardSpec(config.reward.name, {}, config.task.name, dict(config.task.args), str(page), str(page))
        pool = RewardPool(spec, 15.0, 0, 60)
        me = Identity("episodes", 0)
        try:
            await pool.ready(row)
            async with open_server() as server, HttpClient(me, SECRET) as caller:
                client = GenerationClient(caller, 30.0, 0, nowhere)
                tools = WorkerTools(tokenizer, client, pool, False, False, 0.5)
                (known,) = datasets.train.inspect([0])
                given = lease(0, server.address, n=2, row_hash=hash_text(known.hash))
                groups = []
                for name in (config.workflow.name, "twice.py:Twice"):
                    workflow = make_workflow(name, {}, places)
                    result = await EpisodeRunner(tools, datasets, workflow, True).run(given)
                    assert result.header["status"] == "done", result.header
                    groups.append(unpack_group(result.header["facts"], result.blob or b""))
                return groups, server.requests
        finally:
            await pool.close()

    (one, two), requests = asyncio.run(main())
    assert (len(one), len(two)) == (2, 2)
    assert [sample.metrics["turns"] for sample in two] == [2, 2]
    right = sum(given == expected for given, expected in zip("046", row["answer"], strict=True))
    assert one[0].rewards == {"digits": pytest.approx(0.1 * right), "exact": 0.0, "score": 0.0}
    assert tokenizer.decode(requests[-1][0]["prompt"]) == f"{row['prompt']}046 is wrong. {row['prompt']}"


def test_the_rewards_of_the_page_can_be_called(page):
    def call(name, args):
        reward = load_reward(RewardSpec(f"rewards.py:{name}", args, None, {}, str(page), str(page)))
        assert reward is not None
        return reward

    row = {"prompt": "12+34=", "answer": "046"}
    assert call("short", {"penalty": 0.2})("12+34=", "046", row) == pytest.approx(
        {"exact": 1, "length": -0.6, "score": 1}
    )
    assert asyncio.run(call("judged", {})("12+34=", "046", row)) == 0.3


def test_the_tiny_model_has_the_characters_that_the_page_lists():
    named = re.search(r"lower-case letters and `(.*)`\.", PAGE)
    assert named
    TextTokenizer(model_folder("builtin:tiny-addition")).encode(named[1] + "abcdefghijklmnopqrstuvwxyz0123456789")


@pytest.mark.parametrize("kind", ["task", "workflow", "reward"])
def test_arguments_of_built_in_code_are_read_in_its_source(kind):
    """The plan knows them without importing the code. A function gets prompt, answer and columns of the
    row as well: its parameters without a default."""
    for name in BUILT_IN[kind]:
        code = load_built_in(kind, f"{kind}.name", name)
        takes = inspect.signature(code).parameters.values()
        arguments = {each.name for each in takes if inspect.isclass(code) or each.default is not each.empty}
        assert built_in_arguments(kind, name) == arguments, name
    assert built_in_arguments("task", "sorting") == {"min_length", "max_length", "num_rows"}
