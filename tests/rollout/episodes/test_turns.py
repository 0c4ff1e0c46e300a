"""The built-in workflows of several turns, in a worker."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from areal_like.data.tokenizer import TextTokenizer
from areal_like.models import model_folder
from areal_like.process.sandbox.sandbox import sandbox_problem
from areal_like.rollout.episodes.conversation import ConversationRules
from areal_like.rollout.episodes.episode import Episode, WorkerTools
from areal_like.rollout.episodes.rewards.base import RewardError
from areal_like.rollout.episodes.workflows.multi_turn import MultiTurn
from areal_like.rollout.episodes.workflows.tool_integrated import ToolIntegrated
from areal_like.rollout.episodes.workflows.tools import Tools
from tests.data.test_chat_template_real import folder_of
from tests.support.episode_parts import Rewards, runner
from tests.support.ring_parts import EOS, Server, addition_rows, lease

PROMPT, ANSWER = addition_rows("train")[0]["prompt"], addition_rows("train")[0]["answer"]
FEEDBACK = " no, {prompt}"


@pytest.fixture(scope="module")
def tokenizer():
    return TextTokenizer(model_folder("builtin:tiny-addition"))


@pytest.fixture
def run(tmp_path):
    return runner(tmp_path)


class Scripted(Server):
    """Gives the next text of the list to each turn of a conversation."""

    def __init__(self, tokenizer: TextTokenizer, *texts: str) -> None:
        super().__init__()
        self.tokenizer, self.texts = tokenizer, texts
        self.prompts: list[str] = []

    def samples(self, group: dict[str, Any]) -> dict[str, Any]:
        prompt = group["prompt"]
        self.prompts.append(self.tokenizer.decode(prompt))
        self.token_ids = [*self.tokenizer.encode(self.texts[prompt.count(EOS)], special=False), EOS]
        return super().samples(group)


def leases(*, n: int = 2, max_tokens: int = 400, **more: Any) -> Any:
    def given(address: str) -> list[dict[str, Any]]:
        one = lease(0, address, n=n, **more)
        return [one | {"sampling": one["sampling"] | {"max_tokens": max_tokens}}]

    return given


def test_a_wrong_answer_gets_a_feedback_and_the_reward_is_discounted(run, tokenizer):
    server = Scripted(tokenizer, "111", "112", ANSWER, "never")
    args = {"feedback": FEEDBACK, "turn_discount": 0.5}
    done = run(leases(), server, "multi_turn", args=args)
    samples = done.trajectories["0.1"]
    assert [sample.reward for sample in samples] == [0.25 * (0.3 + 0.7), 0.25]
    assert [(sample.metrics["turns"], sample.rewards["score"]) for sample in samples] == [(3, 1), (3, 1)]
    text = f"{PROMPT}111 no, {PROMPT}112 no, {PROMPT}{ANSWER}"
    assert [tokenizer.decode(sample.token_ids.tolist()) for sample in samples] == [text] * 2
    assert [sample.conversation for sample in samples] == [0, 1]
    assert [fact["conversation"] for fact in done.results["0.1"]["facts"]] == [0, 1]
    seeds = [request["seed"] for requests in server.requests for request in requests]
    assert len(set(seeds)) == 6
    assert not any("messages" in fact for fact in done.results["0.1"]["facts"])


def test_messages_are_kept_where_they_are_read(run, tokenizer):
    server = Scripted(tokenizer, "111", ANSWER)
    done = run(leases(n=1), server, "multi_turn", args={"feedback": FEEDBACK}, keeps_messages=True)
    (fact,) = done.results["0.1"]["facts"]
    talk = [("user", PROMPT), ("assistant", "111"), ("user", f" no, {PROMPT}"), ("assistant", ANSWER)]
    assert [(each["role"], each["content"]) for each in fact["messages"]] == talk
    evaluated = run(leases(n=1, purpose="eval"), server, "multi_turn", args={"feedback": FEEDBACK})
    assert [each["content"] for each in evaluated.results["0.1"]["facts"][0]["messages"]] == [text for _, text in talk]


def test_the_prompt_in_a_feedback_is_the_question_of_a_row_of_messages(tmp_path):
    tokenizer = TextTokenizer(folder_of("qwen2_5", tmp_path / "model"))
    tools = WorkerTools(tokenizer, Answers(tokenizer, "111", "046"), Rewards(), False, False, 0.5)
    messages = [("system", "Add."), ("user", "1+1="), ("assistant", "002"), ("user", "12+34=")]
    row = {"prompt": [{"role": role, "content": content} for role, content in messages], "answer": "046"}
    episode = Episode(tools, lease(0, "here", n=1, row_hash="0") | SAMPLING)
    (sample,) = asyncio.run(MultiTurn(feedback="No. {prompt}").run(episode, row)) or []
    assert (sample.messages or [])[-2] == {"role": "user", "content": "No. 12+34="}


@pytest.mark.parametrize(("purpose", "conversations"), [("train", 4), ("eval", 2)])
def test_each_answer_may_be_a_sample_with_the_discounted_reward_of_those_after_it(
    run, tokenizer, purpose, conversations
):
    server = Scripted(tokenizer, "111", "112", ANSWER)
    args = {"feedback": FEEDBACK, "turn_discount": 0.5, "export_style": "individual", "n_trajs": 2}
    samples = run(leases(purpose=purpose), server, "multi_turn", args=args).trajectories["0.1"]
    first = samples[:3]
    assert [sample.conversation for sample in samples] == [at for at in range(conversations) for _ in range(3)]
    assert [sample.reward for sample in first] == [0.25, 0.5, 1.0]
    assert [int(sample.loss_mask.sum()) for sample in first] == [len(f"{ANSWER}") + 1] * 3
    seeds = [request["seed"] for requests in server.requests for request in requests]
    assert len(set(seeds)) == 3 * conversations


@pytest.mark.parametrize(
    ("args", "max_tokens", "turns", "finish"),
    [
        ({"max_turns": 2}, 400, 2, "stop"),
        ({"max_turns": 9}, 60, 4, "length"),
        ({"timeout_s": 1e-9}, 400, 1, "stop"),
    ],
)
def test_conversations_end_by_their_limits_and_without_room_count_as_cut_off(
    run, tokenizer, args, max_tokens, turns, finish
):
    server = Scripted(tokenizer, *["111"] * 9)
    done = run(
        leases(max_tokens=max_tokens), server, "multi_turn", args={"feedback": FEEDBACK, **args}, check_format=True
    )
    assert [(sample.metrics["turns"], sample.finish) for sample in done.trajectories["0.1"]] == [(turns, finish)] * 2


def test_branching_gives_a_sample_of_each_turn_and_evaluations_one_answer(run, tokenizer):
    args, rules = {"feedback": FEEDBACK}, ConversationRules(trajectory_strategy="branching")
    server = Scripted(tokenizer, "111", ANSWER)
    done = run(leases(purpose="eval"), server, "multi_turn", args=args, conversation_rules=rules)
    assert [sample.conversation for sample in done.trajectories["0.1"]] == [0, 0, 1, 1]
    assert done.results["0.1"]["texts"] == {"prompt": PROMPT, "answers": [f"111\n{ANSWER}"] * 2}


def test_a_reward_that_fails_leaves_its_conversation_out_of_the_loss(run, tokenizer):
    server = Scripted(tokenizer, "111", ANSWER)
    done = run(leases(n=2), server, "multi_turn", args={"feedback": FEEDBACK}, error=RewardError("down"), num_failed=1)
    assert done.results["0.1"]["error_kind"] == "reward"


class FailFirst(Rewards):
    """The reward of the first answer fails."""

    async def try_score(self, row, completions, max_failed, seed):
        self.num_failed, failed = 0, self.num_failed
        if failed > max_failed:
            raise self.error
        return [None] if failed else await super().try_score(row, completions, max_failed, seed)


def test_all_conversations_of_a_group_count_in_the_share_of_rewards_that_may_fail(tmp_path):
    tokenizer = TextTokenizer(folder_of("qwen2_5", tmp_path / "model"))

    def played(purpose: str) -> list[float | None]:
        answers, rewards = Answers(tokenizer, "046", "046"), FailFirst(RewardError("down"), num_failed=1)
        tools = WorkerTools(tokenizer, answers, rewards, False, False, 0.5)
        episode = Episode(tools, lease(0, "here", n=1, row_hash="0", purpose=purpose) | SAMPLING)
        row = {"prompt": "12+34=", "answer": "046"}
        return [each.reward for each in asyncio.run(MultiTurn(n_trajs=2).run(episode, row)) or []]

    assert played("train") == [None, 1.0]
    with pytest.raises(RewardError):
        played("eval")


class Both(Tools):
    """With a tool of one's own."""

    def own_tools(self) -> list[Any]:
        async def double(number: int) -> int:
            """Doubles a number."""
            return 2 * number

        return [double]


class Answers:
    """Gives the next text to each turn, as ids that end with the token of the end."""

    def __init__(self, tokenizer: TextTokenizer, *texts: str, ends: Mapping[int, str] | None = None) -> None:
        """`ends`: the end token of each turn, by default the same for all."""
        self.tokenizer, self.texts, self.prompts, self.stops = tokenizer, texts, list[str](), list[Any]()
        self.ends = dict.fromkeys(range(len(texts)), "<|im_end|>") if ends is None else ends

    async def generate(self, route: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
        self.prompts.append(self.tokenizer.decode(group["prompt"], skip_special=False))
        self.stops.append(group["sampling"].get("stop"))
        turn = len(self.prompts) - 1
        ids = self.tokenizer.encode(self.texts[turn] + self.ends.get(turn, ""), special=False)
        return [{"token_ids": ids, "logprobs": [-1.0] * len(ids), "versions": [0] * len(ids), "finish": "stop"}]


def test_a_chat_model_calls_several_tools_at_once(tmp_path):
    tokenizer = TextTokenizer(folder_of("qwen2_5", tmp_path / "model"))
    calls = [
        '{"name": "calculator", "arguments": {"expression": "12+34"}}',
        '{"name": "double", "arguments": {"number": 4}}',
        '{"name": "double", "arguments": {"number": false}}',
        '{"name": "hammer", "arguments": {}}',
    ]
    text = "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
    answers = Answers(tokenizer, text, "046")
    tools = WorkerTools(tokenizer, answers, Rewards(), False, False, 0.5)
    row = {"prompt": [{"role": "user", "content": "12+34="}], "answer": "046"}
    (sample,) = asyncio.run(Both().run(Episode(tools, lease(0, "here", n=1, row_hash="0") | SAMPLING), row)) or []
    assert (sample.metrics["tool_calls"], sample.metrics["tool_errors"], sample.metrics["template_breaks"]) == (4, 2, 0)
    assert "Doubles a number." in answers.prompts[0] and '"calculator"' in answers.prompts[0]
    results = answers.prompts[1].partition("<|im_end|>\n<|im_start|>user\n<tool_response>")[2]
    for shown in (
        "46",
        "8",
        "error: number is not of the type",
        "there is no tool 'hammer'; there are calculator, double",
    ):
        assert shown in results
    assert sample.reward == 1


SAMPLING = {
    "sampling": {"temperature": 0.5, "greedy": False, "max_new_tokens": 600, "max_tokens": 4000, "stop_token_ids": []}
}


@pytest.mark.parametrize("strategy", ["interleaved", "branching"])
def test_a_calculation_within_an_answer_is_computed_and_the_runs_own_stop_texts_end_it(tmp_path, strategy):
    """It is one answer, however the run divides conversations."""
    tokenizer = TextTokenizer(folder_of("qwen2_5", tmp_path / "model"))
    parts = ["it is <calculator>6*7</calculator>", " <calculator>6*</calculator>", "42 STOP"]
    answers = Answers(tokenizer, *parts, ends={})
    rules = ConversationRules(trajectory_strategy=strategy)
    tools = WorkerTools(tokenizer, answers, Rewards(), False, False, 0.5, conversation_rules=rules)
    row = {"prompt": [{"role": "user", "content": "6*7="}], "answer": "042"}
    sampling = {"sampling": SAMPLING["sampling"] | {"stop": "STOP"}}
    workflow = ToolIntegrated(tools="calculator")
    (sample,) = asyncio.run(workflow.run(Episode(tools, lease(0, "here", n=1, row_hash="0") | sampling), row)) or []
    assert (sample.metrics["tool_calls"], sample.metrics["tool_errors"], sample.metrics["turns"]) == (2, 1, 1)
    text = tokenizer.decode(sample.token_ids[len(sample.prompt_ids) :].tolist())
    assert text.startswith(f"{parts[0]}\n```output\n42\n```\n{parts[1]}\n```output\nerror: ValueError")
    assert text.endswith("42 STOP") and answers.stops == [["</calculator>", "STOP"]] * 3


class NoCalls(Answers):
    """Writes the end of a call, without its beginning, as often as it may."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        super().__init__(tokenizer)
        self.limits, self.part = list[int](), tokenizer.encode("6*7</calculator>", special=False)

    async def generate(self, route: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
        self.limits.append(group["sampling"]["max_new_tokens"])
        ids = self.part[: self.limits[-1]]
        finish = "stop" if ids == self.part else "length"
        return [{"token_ids": ids, "logprobs": [-1.0] * len(ids), "versions": [0] * len(ids), "finish": finish}]

    def answered(self, max_new_tokens: int, **args: Any) -> Any:
        tools = WorkerTools(self.tokenizer, self, Rewards(), False, False, 0.5)
        sampling = {"sampling": SAMPLING["sampling"] | {"max_new_tokens": max_new_tokens}}
        episode = Episode(tools, lease(0, "here", n=1, row_hash="0") | sampling)
        row = {"prompt": [{"role": "user", "content": "6*7="}], "answer": "042"}
        (sample,) = asyncio.run(ToolIntegrated(tools="calculator", **args).run(episode, row)) or []
        return sample


@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("rest", [0, 2])
def test_all_parts_of_an_answer_together_have_the_tokens_of_one(tmp_path, is_own, rest):
    answers = NoCalls(TextTokenizer(folder_of("qwen2_5", tmp_path / "model")))
    length = len(answers.part)
    limit = 3 * length + rest
    sample = answers.answered(5, max_answer_tokens=limit) if is_own else answers.answered(limit)
    assert answers.limits == list(range(limit, 0, -length))
    assert (int(sample.loss_mask.sum()), sample.finish, sample.metrics["turns"]) == (limit, "length", 1)


def test_no_part_of_an_answer_begins_after_its_time_and_it_is_cut_off_there(tmp_path):
    answers = NoCalls(TextTokenizer(folder_of("qwen2_5", tmp_path / "model")))
    sample = answers.answered(600, timeout_s=1e-9)
    assert (answers.limits, sample.finish) == ([600], "length")


def test_code_runs_in_the_middle_of_an_answer(tmp_path):
    if reason := sandbox_problem("rlimits"):
        pytest.skip(reason)
    tokenizer = TextTokenizer(folder_of("qwen2_5", tmp_path / "model"))
    parts = ["so\n```python\nprint(6 * 7)\n```\n", "```json\n{}\n```\n", "```python\n1 / 0\n```\n", "42"]
    answers = Answers(tokenizer, *parts, ends={3: "<|im_end|>"})
    tools = WorkerTools(tokenizer, answers, Rewards(), False, False, 0.5)
    row = {"prompt": [{"role": "user", "content": "6*7="}], "answer": "042"}
    workflow = ToolIntegrated(max_calls=2, call_timeout_s=60, sandbox="rlimits")
    (sample,) = asyncio.run(workflow.run(Episode(tools, lease(0, "here", n=1, row_hash="0") | SAMPLING), row)) or []
    assert (sample.metrics["tool_calls"], sample.metrics["tool_errors"], sample.metrics["template_breaks"]) == (2, 1, 0)
    prompt = len(sample.prompt_ids)
    text = tokenizer.decode(sample.token_ids[prompt:].tolist(), skip_special=False)
    assert text.startswith(f"{parts[0]}```output\n42\n```\n{parts[1]}{parts[2]}```output\nerror: ")
    assert text.endswith("42<|im_end|>") and "ZeroDivisionError" in text
    trained = tokenizer.decode(sample.token_ids[sample.loss_mask.astype(bool)].tolist(), skip_special=False)
    assert trained == "".join(parts) + "<|im_end|>"
    assert answers.stops == [["\n```\n"]] * 3 + [[]]
