"""Workflows: what they may do, and the errors of those that fail."""

import math
from typing import Any

import pytest

from areal_like.config.problems import ConfigError
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders
from areal_like.models import model_folder
from areal_like.process.seeds import derive_seed
from areal_like.rollout.episodes.conversation import ConversationRules
from areal_like.rollout.episodes.episode import Episode, WorkerTools
from areal_like.rollout.episodes.rewards.base import RewardError
from areal_like.rollout.episodes.sample import RowError
from areal_like.rollout.episodes.workflows import make_workflow
from tests.support.chat_models import TALK, chat_tokenizer
from tests.support.episode_parts import MINE, one, runner
from tests.support.ring_parts import Server, lease, refuse
from tests.support.rollout_world import grpo


@pytest.fixture
def run(tmp_path):
    return runner(tmp_path)


def test_a_user_workflow_with_two_turns(run):
    server = Server()
    done = run(one, server, "TwoTurns")
    first, second = server.requests[0][0], server.requests[1][0]
    assert (first["n"], first["seed"]) == (1, 1000)
    assert (second["n"], second["seed"], second["order"]) == (3, derive_seed(1000, "call", 1), None)
    assert first["id"] != second["id"]
    assert second["sampling"]["max_new_tokens"] == 2 and second["sampling"]["stop_token_ids"] == [5]
    assert second["prompt"] == first["prompt"] + [2, 6, 8, 1]
    assert len(done.trajectories["0.1"]) == 4


def test_a_workflow_may_skip_a_row(run):
    done = run(one, workflow="Refuses")
    assert done.results["0.1"]["status"] == "rejected" and not done.trajectories


@pytest.mark.parametrize(
    ("workflow", "kind", "message"),
    [
        ("Raises", "workflow", "mine.py line 23, in go: KeyError: 'nothing there'"),
        ("Exits", "workflow", "mine.py line 32, in go: SystemExit: 4"),
        ("Cancels", "workflow", "in go: CancelledError"),
        ("CancelsOne", "workflow", "in go: CancelledError"),
        ("Words", "workflow", "run() returned a list of str; return a list of Trajectory, or None"),
        ("Empty", "workflow", "run() returned what cannot be trained on: a group needs at least one trajectory"),
        ("Hot", "workflow", "generate(temperature=0.9) differs from gconfig.temperature"),
        ("Narrow", "workflow", "generate(top_p=0.9) differs from gconfig.top_p"),
        ("Unknown", "workflow", "generate() takes no 'temprature'; it takes n, temperature"),
        ("Long", "row", "a prompt of 64 tokens leaves no room for an answer: gconfig.max_tokens is 64"),
        (
            "Foreign",
            "row",
            "train_dataset.path: row 0 of the train split of task addition: 'Ä' cannot be tokenized",
        ),
        ("Nothing", "row", "row 0 of the train split of task addition: a prompt without a single token"),
    ],
)
def test_a_failure_names_its_source_and_location(run, workflow, kind, message):
    result = run(one, workflow=workflow).results["0.1"]
    assert (result["status"], result["error_kind"]) == ("failed", kind)
    assert message in result["error"] and "Traceback" not in result["error"]


def test_a_prompt_that_fills_the_context_of_the_servers_is_an_error_of_the_row_and_is_not_sent(run):
    server, rules = Server(), ConversationRules(context_length=64)
    leases = [lease(0, "", n=4)]
    leases[0]["sampling"] |= {"max_tokens": 65536}
    result = run(lambda address: [leases[0] | {"server": address}], server, "Long", conversation_rules=rules)
    (failed,) = result.results.values()
    assert failed["error_kind"] == "row" and not server.requests
    assert failed["error"].endswith("leaves no room for an answer: the context length of the servers is 64")


def test_changes_by_a_workflow_to_its_row_do_not_persist(run):
    server = Server()
    run(lambda address: [lease(0, address), lease(1, address, row=0)], server, "Spoils", max_in_flight=1)
    assert server.requests[0][0]["prompt"] == server.requests[1][0]["prompt"]


def test_mismatched_sampling_is_accepted_if_allowed(run):
    server = Server()
    done = run(one, server, "Hot", allow_mismatched_sampling=True)
    assert server.requests[0][0]["sampling"]["temperature"] == 0.9
    assert done.results["0.1"]["error"].startswith("run() returned a list of Sample")


def test_a_call_may_repeat_neutral_sampling_and_set_stop_texts(run):
    """The text of an answer is without the stop text."""
    server = Server([2, 6, 8])
    server.answer_for = lambda group: {
        "id": group["id"],
        "samples": [{**each, "finish": "stop"} for each in server.samples(group)["samples"]],
    }
    done = run(one, server, "Neutral")
    assert done.results["0.1"]["status"] == "done", done.results["0.1"]
    assert server.requests[0][0]["sampling"]["stop"] == ["46"]


@pytest.mark.parametrize("stop", [{"stop": ["46"]}, {"stop_token_ids": [8]}])
def test_saved_answers_are_the_texts_that_their_reward_read(run, stop):
    """Without the text or the token that stopped them, which is no special one."""
    server = Server([2, 6, 8])
    sample = server.samples({"id": "", "n": 1})["samples"][0] | {"finish": "stop"}
    server.answer_for = lambda group: {"id": group["id"], "samples": [sample] * group["n"]}
    text = "0" if "stop" in stop else "04"

    def stopped(purpose: str) -> Any:
        usual = lease(0, "")["sampling"]
        return lambda address: [lease(0, address, purpose=purpose, sampling=usual | stop)]

    evaluated = run(stopped("eval"), server).results["0.1"]
    assert evaluated["texts"]["answers"] == [text] * 2
    kept, others = run(stopped("train"), server, keeps_messages=True), run(stopped("train"), server)
    assert [each.text for each in kept.trajectories["0.1"]] == [text] * 2
    assert not any("text" in fact for fact in (*others.results["0.1"]["facts"], *evaluated["facts"]))


def test_requests_have_the_priority_of_their_lease(run):
    server = Server()
    run(lambda address: [lease(3, address), lease(8, address) | {"priority": 7}], server, max_in_flight=1)
    assert [groups[0]["priority"] for groups in server.requests] == [0, 7]


def test_a_reward_that_fails_fails_its_group_with_that_reason(run):
    done = run(one, error=RewardError("no judge today"))
    result = done.results["0.1"]
    assert (result["status"], result["error_kind"], result["error"]) == ("failed", "reward", "no judge today")
    assert set(done.counts) == {"errors", "timeouts", "children_lost", "infrastructure"}


JUDGE = RewardError("no judge today")


@pytest.mark.shows("reward.max_failed_share")
@pytest.mark.parametrize(
    ("share", "num_failed", "purpose", "status"),
    [(0.5, 2, "train", "done"), (0.5, 3, "train", "failed"), (0.0, 1, "train", "failed"), (0.5, 1, "eval", "failed")],
)
def test_a_share_of_the_answers_may_be_without_reward_but_none_of_an_evaluation(
    run, share, num_failed, purpose, status
):
    def leases(address):
        return [lease(0, address, n=4, purpose=purpose)]

    most = grpo(f"reward.max_failed_share={share}").reward.max_failed_share
    done = run(leases, error=JUDGE, num_failed=num_failed, max_failed_share=most)
    result = done.results["0.1"]
    assert result["status"] == status
    if status == "failed":
        assert (result["error_kind"], result["error"]) == ("reward", "no judge today")
    else:
        assert [fact["reward"] is None for fact in result["facts"]] == [True, True, False, False]
        assert [fact["loss_tokens"] > 0 for fact in result["facts"]] == [False, False, True, True]
        assert [each.loss_mask.any() for each in done.trajectories["0.1"]] == [False, False, True, True]


def test_a_workflow_of_ones_own_gets_every_reward_or_an_error(run):
    result = run(one, workflow="TwoTurns", error=JUDGE, num_failed=1).results["0.1"]
    assert (result["status"], result["error"]) == ("failed", "no judge today")


def test_a_workflow_may_report_a_failure_of_infrastructure(run):
    done = run(one, workflow="Down")
    result = done.results["0.1"]
    assert (result["status"], result["error_kind"], result["error"]) == (
        *("failed", "infrastructure", "the judge is down"),
    )
    assert done.counts["infrastructure"] == 1


@pytest.mark.parametrize(("count", "status"), [(2, "done"), (3, "failed")])
def test_a_workflow_may_leave_answers_without_a_reward_up_to_the_share(run, count, status):
    result = run(one, workflow="Unjudged", args={"count": count}).results["0.1"]
    assert result["status"] == status
    if status == "failed":
        error = "3 of 4 answers have no reward, and 2 may (reward.max_failed_share)"
        assert (result["error_kind"], result["error"]) == ("reward", error)


def test_a_server_that_fails_fails_the_group_with_that_reason(run):
    server = Server()
    server.fails = [refuse(500, "out of memory")]
    result = run(one, server).results["0.1"]
    assert (result["status"], result["error_kind"]) == ("failed", "server")
    assert "out of memory" in result["error"]


@pytest.mark.parametrize(
    ("what", "value", "message", "always"),
    [
        ("reward", math.nan, "its reward 'reward' is nan", True),
        ("finish", "done", "`finish` is 'done'", True),
        ("logprobs", math.inf, "`logprobs` are not all finite", True),
        ("token_ids", 64, "token 9 is 64; the tokenizer knows ids from 0 to 63", False),
        ("loss_mask", 2, "its `loss_mask` holds [0, 1, 2]", False),
        ("logprobs", 0.5, "the log-probability of token 9 is 0.5; it cannot be above 0", False),
        ("logprobs", -2.5, "token 0 is out of the loss but has log-probability -2.5", False),
    ],
)
def test_trajectories_are_checked_if_configured(run, what, value, message, always):
    args = {"what": what, "value": value}
    checked = run(one, workflow="Wrong", args=args, check_format=True).results["0.1"]
    assert (checked["status"], checked["error_kind"]) == ("failed", "workflow")
    assert message in checked["error"]
    assert (run(one, workflow="Wrong", args=args).results["0.1"]["status"] == "failed") is always


def test_good_trajectories_pass_the_check(run):
    assert run(one, check_format=True).results["0.1"]["status"] == "done"


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("mine.py:Wrong", {"what": 1}, "workflow.args: mine.py:Wrong cannot be created with {'what': 1}: missing a"),
        ("single_turn", {"turns": 1}, "workflow.args: single_turn cannot be created with {'turns': 1}: "),
        ("mine.py:Trajectory", {"token_ids": 1}, "workflow.args: mine.py:Trajectory cannot be created"),
        (
            "mine.py:Fails",
            {},
            "workflow.name: mine.py:Fails could not be created: MINE line 128, in __init__: OSError",
        ),
        ("mine.py:Sync", {}, "workflow.name: mine.py:Sync is not a workflow: it has no method `async def run(self, "),
        (
            "mine.py:Partial",
            {},
            "workflow.name: run of mine.py:Partial takes (row) and is called as run(episode, row)",
        ),
        ("mine.py:ROW", {}, "workflow.name: mine.py:ROW is dict, not a class"),
        ("singel_turn", {}, "workflow.name: 'singel_turn' is not built in; did you mean single_turn?"),
    ],
)
def test_a_workflow_that_cannot_be_made_is_one_message_that_begins_with_its_key(tmp_path, name, args, message):
    more = "ROW = {}\nclass Sync:\n    def run(self, episode, row): ...\n"
    more += "class Base:\n    async def run(self, row): ...\nclass Partial(Base): ...\n"
    more += "class Fails:\n    def __init__(self):\n        raise OSError('away')\n"
    (tmp_path / "mine.py").write_text(MINE + more)
    with pytest.raises(ConfigError) as caught:
        make_workflow(name, args, SearchFolders(tmp_path, tmp_path))
    assert str(caught.value).startswith(message.replace("MINE", str(tmp_path / "mine.py")))


def test_messages_become_tokens_by_the_chat_template_of_the_tokenizer(tmp_path):
    def episode(tokenizer: TextTokenizer) -> Episode:
        nobody: Any = None
        return Episode(WorkerTools(tokenizer, nobody, nobody, False, False, 0.5), {"id": "0.1", "server": "", "n": 1})

    tokenizer = chat_tokenizer(tmp_path / "m")
    ids = episode(tokenizer).encode(TALK[:3])
    assert tokenizer.decode(ids, skip_special=False).endswith("2<eos><user> 2+2<eos><assistant> ")
    with pytest.raises(RowError, match="has no chat template"):
        episode(TextTokenizer(model_folder("builtin:tiny-addition"))).encode(TALK[:3])
