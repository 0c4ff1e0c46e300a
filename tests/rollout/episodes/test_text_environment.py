"""Text environments in a worker: played as conversations by processes that crash, hang and print."""

import asyncio
import os
import signal
import socket
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson
import pytest

from areal_like.config.load import load
from areal_like.data.tasks import TEST, TRAIN, make_task
from areal_like.data.tokenizer import TextTokenizer
from areal_like.data.user_code import SearchFolders
from areal_like.models import model_folder
from areal_like.process.identity import KEY_VARIABLE, TOKEN, hide_key
from areal_like.process.process_tree import process_info
from areal_like.rollout.episodes.conversation import ConversationRules
from areal_like.rollout.episodes.episode import Episode, WorkerTools
from areal_like.rollout.episodes.rewards.base import RewardError
from areal_like.rollout.episodes.sample import RowError
from areal_like.rollout.episodes.text_environments import process
from areal_like.rollout.episodes.text_environments.pool import EnvironmentPools
from areal_like.rollout.episodes.text_environments.process import EnvironmentFault, InstanceSpec
from areal_like.rollout.episodes.workflows.text_environment import PlayEnvironment
from tests.support.episode_parts import Rewards
from tests.support.ring_parts import EOS, lease

GUESS = '''
import logging, os, socket, sys, time

class Guess:
    """Guess a number: the seed modulo 10, plus `shift`."""
    def __init__(self, shift=0, key_variable=None):
        self.shift, self.games = shift, 0
    def reset(self, *, seed=None, options=None):
        self.number, self.games, self.turn = seed % 10 + self.shift, self.games + 1, 0
        print("printed, and no answer")
        logging.getLogger("guess").info("game %d", self.games)
        return f"guess {self.games}:", {}
    def step(self, action):
        self.turn += 1
        if action == "crash":
            os._exit(3)
        if action == "hang":
            time.sleep(600)
        if action == "raise":
            raise KeyError("no such move")
        if action == "nothing":
            return "?"
        if action == "half":
            return "half of a pair: \\ud800", 0.0, False, False, {}
        if action == "raise half":
            raise ValueError("\\ud800")
        if action == "no answer":
            for number in range(3, 20):
                try:
                    os.write(number, b"printed, and no answer\\n")
                except OSError:
                    pass
        if action == "fill":
            bytearray(10**9)
        if action == "listen":
            self.socket = socket.create_server(("127.0.0.1", 0))
            return f"{self.socket.getsockname()[1]}", 0.0, False, False, {}
        if action == "accept":
            connection, _ = self.socket.accept()
            return connection.recv(99).decode(), 0.0, False, False, {}
        if action == "variables":
            return " ".join(os.environ), 0.0, False, False, {}
        if action == "pid":
            return f"{os.getpid()}", 0.0, False, False, {}
        right = action.strip() == str(self.number)
        return f" no {action},", 1.0 if right else -0.5, right, self.turn == 9, {"score": float(right)}

class Refusing(Guess):
    """So many times, over all processes."""
    def __init__(self, refused):
        self.refused = refused
        super().__init__(2)
    def reset(self, *, seed=None, options=None):
        with open("refused", "ab", 0) as file:
            file.write(b".")
            times = file.tell()
        if times <= self.refused:
            raise OSError("not now")
        return super().reset(seed=seed)

class Awaited(Guess):
    async def reset(self, seed):
        return super().reset(seed=seed)
'''


class Answers:
    """Gives the next text to each turn of a conversation."""

    def __init__(self, tokenizer: TextTokenizer, *texts: str) -> None:
        self.tokenizer, self.texts, self.prompts = tokenizer, texts, list[str]()

    async def generate(self, route: Any, group: dict[str, Any]) -> list[dict[str, Any]]:
        prompt = group["prompt"]
        self.prompts.append(self.tokenizer.decode(prompt))
        ids = [*self.tokenizer.encode(self.texts[prompt.count(EOS)], special=False), EOS]
        zeros = [0.0] * len(ids)
        return [{"token_ids": ids, "logprobs": zeros, "versions": [0] * len(ids), "finish": "stop"}]


class Played:
    """Environments of `guess.py`, in a worker's parts."""

    def __init__(self, folder: Path, level: str = "warning", max_memory_gb: float | None = None) -> None:
        (folder / "guess.py").write_text(GUESS)
        self.places = SearchFolders(folder, folder)
        self.pools = EnvironmentPools(self.places, level, max_memory_gb)
        self.tokenizer = TextTokenizer(model_folder("builtin:tiny-addition"))
        self.answers = Answers(self.tokenizer)
        self.episodes = list[Episode]()

    def row(self, name: str = "guess.py:Guess", split: str = TRAIN, **args: Any) -> Any:
        return next(each for each in make_task(name, args, self.places).rows(split) if each["seed"] % 10 == 7)

    async def play(
        self,
        *texts: str,
        row: Any = None,
        n: int = 1,
        max_failed_share: float = 0.0,
        context_length: int | None = None,
        **args: Any,
    ) -> Any:
        self.answers = Answers(self.tokenizer, *texts)
        tools = WorkerTools(
            *(self.tokenizer, self.answers, Rewards(), False, False, max_failed_share),
            conversation_rules=ConversationRules(context_length=context_length),
            environments=self.pools,
        )
        one = lease(0, "", n=n)
        episode = Episode(tools, one | {"sampling": one["sampling"] | {"max_tokens": 200}})
        self.episodes.append(episode)
        return await PlayEnvironment(**args).run(episode, row or self.row())

    def spec(self, **limits: Any) -> InstanceSpec:
        known = {"python": None, "start_timeout_s": 60.0, "call_timeout_s": 60.0, "max_processes": 2}
        return InstanceSpec("guess.py:Guess", b"{}", **{**known, **limits})


@pytest.fixture
def played(tmp_path):
    return Played(tmp_path)


def run(played: Played, work: Any) -> Any:
    async def all_of_it() -> Any:
        try:
            return await asyncio.wait_for(work(), 120)
        finally:
            await played.pools.close()

    return asyncio.run(all_of_it())


def test_observations_are_messages_and_the_reward_is_that_of_all_steps(played):
    (sample,) = run(played, lambda: played.play("3", "7"))
    assert played.tokenizer.decode(sample.token_ids.tolist()) == "guess 1:3 no 3,7"
    assert (sample.reward, sample.rewards, sample.metrics["turns"]) == (0.5, {"score": 1.0}, 2.0)
    assert played.answers.prompts == ["guess 1:", "guess 1:3 no 3,"]
    assert played.pools.counts == {"environment_starts": 1}


def test_each_answer_may_have_the_reward_of_the_steps_from_its_own_one_on(played):
    samples = run(played, lambda: played.play("3", "7", turn_rewards=True, turn_discount=0.5))
    assert [sample.reward for sample in samples] == [-0.5 + 0.5, 1.0]
    (sample,) = run(Played(played.places.folder), lambda: played.play("3", "7", turn_discount=0.5))
    assert sample.reward == -0.5 + 0.5 * 1.0


@pytest.mark.parametrize(
    ("args", "turns"), [({"max_turns": 3}, 3), ({"timeout_s": 1e-9}, 1), ({}, 9)], ids=["turns", "time", "environment"]
)
def test_a_game_ends_at_its_limits(played, args, turns):
    (sample,) = run(played, lambda: played.play(*["3"] * 9, **args))
    assert (sample.metrics["turns"], sample.rewards) == (turns, {"score": 0.0})


def test_instances_are_used_again_and_no_more_than_the_limit(played):
    async def work() -> Any:
        await played.play("3", "7", n=5, max_processes=2)
        return await played.play("3", "7", n=5, max_processes=2)

    samples = run(played, work)
    assert len(samples) == 5 and played.pools.counts == {"environment_starts": 2}
    games = [played.tokenizer.decode(each.token_ids.tolist()).split(":")[0] for each in samples]
    assert max(int(each.removeprefix("guess ")) for each in games) >= 3


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("crash", "its process ended with exit code 3: printed, and no answer"),
        ("hang", "step took longer than 3 s (workflow.args.call_timeout_s)"),
        ("raise", "in step: KeyError: 'no such move'"),
        ("half", "UnicodeEncodeError: 'utf-8' codec can't encode character '\\ud800'"),
        ("raise half", "in step: ValueError: ?"),
        ("no answer", "its process sent what cannot be read (unexpected character"),
        ("nothing", "step of guess.py:Guess returned str; return (observation, reward, terminated, truncated, info)"),
    ],
)
def test_a_fault_is_an_error_of_the_episode_and_another_process_takes_its_place(played, action, message):
    async def work() -> Any:
        limit_s = 3.0 if action == "hang" else 60.0
        with pytest.raises(EnvironmentFault) as fault:
            await played.play("3", action, call_timeout_s=limit_s)
        assert str(fault.value).startswith("guess.py:Guess: ") and message in str(fault.value)
        return await played.play("7", call_timeout_s=limit_s)

    (sample,) = run(played, work)
    assert sample.reward == 1.0
    timeouts = {"environment_timeouts": 1} if action == "hang" else {}
    assert played.pools.counts == {"environment_starts": 2, "environment_failures": 1, **timeouts}


@pytest.mark.parametrize("max_memory_gb", [0.5, None])
def test_a_process_has_a_limit_of_memory(tmp_path, max_memory_gb):
    played = Played(tmp_path, max_memory_gb=max_memory_gb)
    (sample,) = run(played, lambda: played.play("fill", "7", max_failed_share=1.0))
    assert (sample.reward is None) == (max_memory_gb is not None)


def test_the_time_in_an_environment_is_that_of_tools(played):
    run(played, lambda: played.play("3", "7"))
    times = played.episodes[0].times.totals(with_other=True)
    assert times["tools_s"] > times["other_s"]


def test_a_sample_whose_environment_fails_may_be_left_out_of_the_loss(played):
    samples = run(played, lambda: played.play("raise", max_failed_share=1.0))
    assert [sample.reward for sample in samples] == [None] and not RewardError.__subclasses__()


def test_a_sample_whose_environment_cannot_be_reset_is_left_out_as_far_as_rewards_may_fail(played):
    row = played.row("guess.py:Refusing", refused=2)
    samples = run(played, lambda: played.play("9", row=row, n=4, max_processes=1, max_failed_share=0.5))
    assert [sample.reward for sample in samples] == [1.0] * 2
    for fresh, share in ((3, 0.5), (4, 1.0)):
        (played.places.folder / "refused").unlink()
        others = Played(played.places.folder)
        row = others.row("guess.py:Refusing", refused=fresh)
        with pytest.raises(EnvironmentFault, match="in reset: OSError: not now"):
            run(others, lambda one=row, own=others, most=share: own.play("9", row=one, n=4, max_failed_share=most))


def test_a_first_observation_without_room_in_the_context_is_an_error_of_the_row(played):
    with pytest.raises(RowError, match=r"a prompt of 8 tokens leaves no room .* context length of the servers is 8"):
        run(played, lambda: played.play("7", context_length=8))


def test_a_process_ends_with_its_keeper_and_its_fault(played):
    async def work() -> int:
        async with played.pools.instance(played.spec()) as environment:
            await environment.reset(7)
            pid = int((await environment.step("pid"))["observation"])
            with pytest.raises(EnvironmentFault):
                await environment.step("raise")
        await environment.ended()
        return pid

    assert process_info(run(played, work)) is None


def test_a_keeper_that_is_stopped_goes_on_to_end_its_process(played, monkeypatch):
    monkeypatch.setattr(process, "KILL_TIMEOUT_S", 60.0)

    async def work() -> tuple[int, int | None]:
        async with played.pools.instance(played.spec()) as environment:
            await environment.reset(7)
            pid = int((await environment.step("pid"))["observation"])
            os.kill(environment._process.pid, signal.SIGSTOP)
            environment.end()
            await environment.ended()
        return pid, environment._process.returncode

    pid, code = run(played, work)
    assert process_info(pid) is None and code == -signal.SIGTERM, "nothing had to kill the keeper"


def test_a_process_whose_keeper_does_not_end_is_killed(played, monkeypatch):
    monkeypatch.setattr(process, "KILL_TIMEOUT_S", 0.2)

    async def work() -> tuple[int, int]:
        async with played.pools.instance(played.spec()) as environment:
            await environment.reset(7)
            pid = int((await environment.step("pid"))["observation"])
            os.kill(environment._process.pid, signal.SIGSTOP)
            await environment.ended()
        return pid, environment._process.pid

    for pid in run(played, work):
        while (left := process_info(pid)) is not None and left.state != "Z":  # nobody may wait for it
            time.sleep(0.01)


def test_a_file_beside_that_of_the_experiment_comes_before_one_in_the_working_directory(tmp_path):
    played = Played(tmp_path)
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / "guess.py").write_text("Guess = None\n")
    played.pools = EnvironmentPools(SearchFolders(tmp_path, tmp_path / "cwd"), "warning", None)
    (sample,) = run(played, lambda: played.play("7"))
    assert sample.reward == 1.0


def test_arguments_of_more_than_64_bits_are_exact(played):
    shift = 1 << 70
    (sample,) = run(played, lambda: played.play(str(7 + shift), row=played.row(shift=shift)))
    assert sample.reward == 1.0


def test_an_environment_may_hold_a_socket_over_its_games_and_the_socket_ends_with_its_process(played):
    async def work() -> tuple[int, list[str]]:
        spec, observed = played.spec(max_processes=1), list[str]()
        async with played.pools.instance(spec) as environment:
            await environment.reset(7)
            port = int((await environment.step("listen"))["observation"])
        for text in ("first", "second"):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(text.encode())
                async with played.pools.instance(spec) as environment:
                    await environment.reset(7)
                    observed.append((await environment.step("accept"))["observation"])
        return port, observed

    port, observed = run(played, work)
    assert observed == ["first", "second"] and played.pools.counts == {"environment_starts": 1}
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=60)


@pytest.mark.parametrize(
    ("addresses", "args", "is_shown"),
    [("['h:1']", {}, False), ("['h:1']", {"key_variable": "THEIR_KEY"}, True), ("[]", {}, True)],
)
def test_an_environment_sees_no_token_and_the_key_of_attached_servers_only_if_it_names_it(
    played, monkeypatch, addresses, args, is_shown
):
    monkeypatch.setenv(KEY_VARIABLE, "")
    for name in (TOKEN, "THEIR_KEY", "ANOTHER_KEY"):
        monkeypatch.setenv(name, "secret")
    words = [f"rollout.server_addresses={addresses}", "rollout.api_key_var=THEIR_KEY"]
    hide_key(load("grpo.yaml", words).config.rollout)

    async def work() -> set[str]:
        async with played.pools.instance(played.spec()._replace(args=orjson.dumps(args))) as environment:
            await environment.reset(7)
            return set((await environment.step("variables"))["observation"].split())

    shown = run(played, work)
    assert TOKEN not in shown and "ANOTHER_KEY" in shown and ("THEIR_KEY" in shown) == is_shown


@pytest.mark.parametrize(("name", "start"), [("guess.py:Awaited", "guess 1:"), ("guess:Guess", "guess 1:")])
def test_methods_may_be_async_and_a_class_of_a_module(played, name, start):
    (sample,) = run(played, lambda: played.play("7", row=played.row(name)))
    assert played.tokenizer.decode(sample.token_ids.tolist()) == f"{start}7" and sample.reward == 1.0


def test_arguments_reach_the_class(played):
    (sample,) = run(played, lambda: played.play("9", row=played.row(shift=2)))
    assert sample.reward == 1.0


def test_instructions_come_first_and_a_part_of_the_answer_is_the_action(played):
    args = {"instructions": "be brief. ", "take": "last_number"}
    (sample,) = run(played, lambda: played.play("it is 7", **args))
    assert played.answers.prompts == ["be brief. guess 1:"] and sample.reward == 1.0


@pytest.mark.parametrize("family", [each for each in ("gymnasium", "textarena", "openenv") if find_spec(each) is None])
def test_a_missing_package_is_named_with_the_command_that_installs_it(played, family):
    row = played.row() | {"text_environment": f"{family}:Nothing-v0"}

    async def work() -> str:
        with pytest.raises(EnvironmentFault) as fault:
            await played.play("7", row=row)
        return str(fault.value)

    package = {"openenv": "openenv-core"}.get(family, family)
    text = run(played, work)
    assert f"{family}:Nothing-v0 needs the package {package}" in text and f"pip install {package}" in text


@pytest.mark.shows("log.environment_level")
@pytest.mark.parametrize(("level", "shown"), [("info", True), ("warning", False)])
def test_environments_log_from_their_level_on(tmp_path, capfd, level, shown):
    played = Played(tmp_path, level)
    run(played, lambda: played.play("7"))
    assert ("INFO guess: game 1" in capfd.readouterr().err) == shown


def test_rows_are_seeds_and_no_held_out_one_is_trained_on(played):
    task = make_task("guess.py:Guess", {}, played.places)
    train, test = ({row["seed"] for row in task.rows(split)} for split in (TRAIN, TEST))
    assert len(train | test) == 1000 and not train & test and 150 < len(test) < 250
    assert orjson.loads(orjson.dumps(played.row())) == played.row()
