"""The workflow `agent`: programs and functions as they are, their rewards and their failures."""

import asyncio
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from areal_like.config.sections.agent import AgentConfig
from areal_like.data.user_code import SearchFolders
from areal_like.data.verifiers import environment_process
from areal_like.process.errors import InfrastructureError
from areal_like.process.identity import EPISODES, KEY_VARIABLE, Identity
from areal_like.process.process_tree import process_info
from areal_like.process.proxy_variables import around_proxy
from areal_like.rollout.episodes import main as worker
from areal_like.rollout.episodes.agents import command as agent_command
from areal_like.rollout.episodes.agents import function
from areal_like.rollout.episodes.agents.base import AgentError
from areal_like.rollout.episodes.agents.command import CommandAgent
from areal_like.rollout.episodes.agents.function import FunctionAgent
from areal_like.rollout.episodes.episode import Episode, WorkerTools
from areal_like.rollout.episodes.gateway.gateway import Endpoint
from areal_like.rollout.episodes.generation_client import GenerationClient, GenerationError, LeaseRoute
from areal_like.rollout.episodes.rewards.base import RewardError
from areal_like.rollout.episodes.workflows.agent import Agent
from tests.support.agents import SAMPLING, SampledTexts
from tests.support.chat_models import chat_tokenizer
from tests.support.episode_parts import Rewards
from tests.support.ring_parts import lease

PROGRAM = """
import json, os, sys, urllib.request
row = json.loads(sys.stdin.readline())
def call(path, body):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + path
    return json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)))
def ask(text):
    return call("/chat/completions", {"messages": [{"role": "user", "content": text}]})
"""
FUNCTIONS = """
async def asks(row, client):
    answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": row["prompt"]}])
    return 0.75 if answer.choices[0].message.content == row["answer"] else 0.0

async def returns(row, client):
    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": row["prompt"]}])
    return {"reward": 0.5, "turns": 3}

async def returns_parts(row, client):
    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": row["prompt"]}])
    return {"format": 0.5, "turns": 3}

class AsyncSolver:
    async def __call__(self, row, client):
        return await asks(row, client)

solver = AsyncSolver()

def blocks(row, client, base_url, api_key):
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": row["prompt"]}])
    return None

async def hangs(row, client):
    import asyncio
    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": row["prompt"]}])
    await asyncio.Event().wait()

def breaks(row, client):
    client.chat.completions.create(model="m", messages=[{"role": "user", "content": row["prompt"]}])
    raise SystemExit("it is over")
"""
ROW = {"prompt": "12+34=", "answer": "046"}
HUGE = 123456789012345678901234567890


@pytest.fixture
def play(tmp_path):
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    tokenizer = chat_tokenizer(tmp_path / "chat")

    def run(
        program: str = "",
        *texts: Any,
        n: int = 1,
        max_failed_share: float = 0.5,
        purpose: str = "train",
        **settings: Any,
    ) -> tuple[Any, SampledTexts]:
        (tmp_path / "program.py").write_text(PROGRAM + program)
        command = {} if "function" in settings else {"command": ["python", "program.py"]}
        made: Any = AgentConfig
        agent = Agent.configured(made(**{**command, "timeout_s": 120.0, **settings}), SearchFolders(tmp_path, tmp_path))
        engine = SampledTexts(tokenizer, *texts)

        async def play() -> Any:
            tools = WorkerTools(*(tokenizer, engine, Rewards(), False, False, max_failed_share), gateway=engine.gateway)
            given = lease(0, "here", n=n, row_hash="0", purpose=purpose)
            try:
                return await agent.run(Episode(tools, given | {"sampling": SAMPLING}), ROW)
            finally:
                await engine.gateway.close()

        return asyncio.run(play()), engine

    return run


def test_a_program_is_run_for_each_sample_and_its_last_answer_is_scored(play):
    samples, engine = play('ask("1+1"); print("so"); ask(row["prompt"])', *(["1", "046"] * 2), n=2, max_concurrent=1)
    engine.check_exact(samples)
    assert [each.reward for each in samples] == [1.0] * 4 and [each.conversation for each in samples] == [0, 0, 1, 1]
    assert {(each.metrics["turns"], each.metrics["sequences"]) for each in samples} == {(2, 2)}


@pytest.mark.parametrize(
    ("program", "settings", "reward"),
    [
        ('ask("1"); print("text"); print(0.25)', {"reward_from": "result"}, 0.25),
        ('ask("1"); print(json.dumps({"reward": -1}))', {"reward_from": "result"}, -1.0),
        ('ask("1"); call("/reward", {"reward": 0.5})', {"reward_from": "posted"}, 0.5),
        ('ask("1"); print("nan")', {"reward_from": "result", "failed_reward": -2.0}, -2.0),
        ('ask("1")', {"reward_from": "posted", "failed_reward": -2.0}, -2.0),
        ('ask("1"); sys.exit(3)', {"failed_reward": 0.0}, 0.0),
        ("", {"function": "functions.py:asks", "reward_from": "result"}, 0.75),
        ("", {"function": "functions.py:solver", "reward_from": "result"}, 0.75),
        ("", {"function": "functions.py:returns", "reward_from": "result"}, 0.5),
        ("", {"function": "functions.py:blocks"}, 1.0),
        ("", {"function": "functions.py:breaks", "failed_reward": -1.0}, -1.0),
    ],
)
def test_the_reward_is_scored_printed_returned_or_posted(play, program, settings, reward):
    samples, _ = play(program, "046", **settings)
    assert [each.reward for each in samples] == [reward]


def test_rewards_that_are_posted_for_calls_alone_are_all_there_are(play):
    program = 'for text in "12": call("/reward", {"id": ask(text)["id"], "reward": 0.5})'
    settings = {"reward_from": "posted", "turn_discount": 0.5, "failed_reward": -1.0}
    samples, _ = play(program, "046", "047", **settings)
    assert [each.reward for each in samples] == [0.5 + 0.5 * 0.5, 0.5]


@pytest.mark.parametrize(
    ("program", "settings", "error", "message"),
    [
        ('ask("1"); print("why", file=sys.stderr); sys.exit(3)', {}, RewardError, "ended with exit code 3: why"),
        ('ask("1"); os.kill(os.getpid(), 9)', {}, RewardError, "ended with SIGKILL"),
        ("", {}, AgentError, "ended without an answer"),
        ('ask("1"); print("x")', {"reward_from": "result"}, RewardError, "the last line is 'x'"),
        (*("", {"function": "functions.py:returns_parts", "reward_from": "result"}), RewardError, "without `reward`"),
        ('call("/chat/completions", {})', {}, AgentError, "messages: give a list"),
        ('bytearray(10**9); ask("1")', {"max_memory_gb": 0.3}, AgentError, "MemoryError"),
        ("", {"command": ["no-such-program"]}, AgentError, "no-such-program cannot be started"),
    ],
)
def test_an_agent_that_fails_has_no_reward_and_the_error_says_how(play, program, settings, error, message):
    with pytest.raises(error) as raised:
        play(program, "1", **settings)
    assert message in str(raised.value)


def test_a_sample_that_fails_is_left_out_of_the_loss_as_far_as_rewards_may_fail(play):
    program = 'ask("1"); sys.exit(ask("2")["choices"][0]["message"]["content"] == "3")'
    samples, _ = play(program, "2", "3", "2", "4", n=2, max_concurrent=1)
    assert [each.reward for each in samples] == [None, None, 0.0, 0.0]


FIRST_FAILS = """
if not os.path.exists("failed"):
    open("failed", "w").close()
    sys.exit(3)
ask(row["prompt"])
"""


def test_an_agent_that_fails_before_its_first_answer_is_left_out_as_far_as_rewards_may_fail(play):
    samples, engine = play(FIRST_FAILS, *["046"] * 3, n=4, max_concurrent=1)
    engine.check_exact(samples)
    assert [each.reward for each in samples] == [1.0] * 3
    with pytest.raises(AgentError, match="ended with exit code 3"):
        play("sys.exit(3)", n=4)


def test_a_group_of_which_nothing_is_left_is_an_error_whatever_share_may_fail(play):
    with pytest.raises(AgentError, match="ended with exit code 3"):
        play("sys.exit(3)", n=2, max_failed_share=1.0)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_in_an_evaluation_an_agent_that_fails_is_an_error_and_no_wrong_answer(play, share):
    with pytest.raises(AgentError, match="ended with exit code 3"):
        play(FIRST_FAILS, "046", n=2, max_concurrent=1, max_failed_share=share, purpose="eval")


def test_functions_that_hang_end_the_agents_by_name_until_they_are_fewer(monkeypatch):
    monkeypatch.setattr(function, "MAX_HANGING", 2)
    monkeypatch.setattr(function, "END_LIMIT_S", 0.0)
    began, may_end, endpoint = threading.Semaphore(0), threading.Event(), Endpoint("http://none", "")

    def solve(row: dict[str, Any]) -> float:
        if row:
            began.release()
            may_end.wait(60)
        return 1.0

    async def run() -> None:
        agent = FunctionAgent("mine.py:solve", solve)
        for _ in range(2):
            given_up = asyncio.create_task(agent.run(ROW, endpoint))
            await asyncio.to_thread(began.acquire, timeout=60)
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
        with pytest.raises(InfrastructureError, match=r"mine\.py:solve hangs: 2 of its threads"):
            await agent.run({}, endpoint)
        may_end.set()
        for thread in agent._hanging:
            thread.join(60)
        assert await agent.run({}, endpoint) == 1.0

    asyncio.run(run())


@pytest.mark.slow
def test_an_agent_at_its_limit_is_given_up(play):
    samples, _ = play("", "046", function="functions.py:hangs", timeout_s=10.0, failed_reward=-1.0)
    assert [each.reward for each in samples] == [-1.0]
    with pytest.raises(RewardError, match=r"agent\.timeout_s: the agent took longer than 10 s"):
        play('ask("1"); import time; time.sleep(600)', "1", timeout_s=10.0)


@pytest.mark.parametrize("who", ["getpid", "getppid"], ids=["program", "keeper"])
def test_a_program_that_is_stopped_for_good_is_ended_long_before_its_limit(play, monkeypatch, who):
    monkeypatch.setattr(agent_command, "CHECK_S", 0.2)
    program = f'ask("1"); import os, signal, time; os.kill(os.{who}(), signal.SIGSTOP); time.sleep(600)'
    samples, _ = play(program, "046", failed_reward=-1.0)
    assert [each.reward for each in samples] == [-1.0]
    with pytest.raises(RewardError, match=r"agent\.command: the program was stopped \(SIGSTOP\)"):
        play(program, "1")


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", "python program.py; true"],
        ["sh", "-c", "(python program.py; true); true"],
        ["python", "-c", "import subprocess, sys; sys.exit(subprocess.run(['python', 'program.py']).returncode)"],
    ],
    ids=["a shell", "a shell in a shell", "Python"],
)
def test_a_stopped_program_is_found_below_those_that_wait_for_it(play, monkeypatch, command):
    monkeypatch.setattr(agent_command, "CHECK_S", 0.2)
    program = 'ask("1"); import os, signal, time; os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600)'
    samples, _ = play(program, "046", command=command, failed_reward=-1.0)
    assert [each.reward for each in samples] == [-1.0]


@pytest.mark.parametrize(
    "works",
    [
        "import socket; url = os.environ['OPENAI_BASE_URL'].split('/')[2]; host, port = url.split(':'); "
        "answer = socket.create_connection((host, int(port))); time.sleep(1.5); answer.close()",
        "ends = time.monotonic() + 1.5\nwhile time.monotonic() < ends: pass",
        "other = subprocess.run(['sleep', '1.5'])",
        "try: held.communicate(timeout=1.5)\nexcept subprocess.TimeoutExpired: pass",
    ],
    ids=["waits for an answer", "computes", "waits for another process", "waits for it until its limit"],
)
def test_a_program_that_goes_on_while_a_process_of_its_own_is_stopped_is_not_ended(play, monkeypatch, works):
    monkeypatch.setattr(agent_command, "CHECK_S", 0.2)
    stops = "import subprocess, time; held = subprocess.Popen(['sleep', '60']); held.send_signal(19)  # SIGSTOP"
    samples, _ = play(f'{stops}\n{works}\nheld.kill(); ask("1")', "046")
    assert [each.reward for each in samples] == [1.0]


def test_a_program_that_is_stopped_for_a_while_goes_on(play, monkeypatch):
    monkeypatch.setattr(agent_command, "CHECK_S", 0.3)
    stops = (
        "import os, signal, subprocess; "
        "subprocess.Popen(['sh', '-c', f'sleep 0.5; kill -CONT {os.getpid()}']); os.kill(os.getpid(), signal.SIGSTOP); "
    )
    samples, _ = play(f'{stops}ask("1")', "046")
    assert [each.reward for each in samples] == [1.0]


def test_a_program_that_is_ended_is_killed_with_all_that_it_started(tmp_path):
    written = tmp_path / "pids"
    program = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open({str(written)!r} + ".new", "w").write(f"{{os.getpid()}} {{child.pid}}")
os.rename({str(written)!r} + ".new", {str(written)!r})
time.sleep(600)
"""

    async def end_it() -> None:
        running = CommandAgent([sys.executable, "-c", program], tmp_path, None).run(ROW, Endpoint("http://none", ""))
        task = asyncio.create_task(running)
        while not written.exists():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(end_it())
    for pid in map(int, written.read_text().split()):
        info = process_info(pid)
        assert info is None or info.state == "Z"


@pytest.mark.parametrize(("ending", "error"), [("", ""), ("sys.exit(3)", "ended with exit code 3: why")])
def test_nothing_is_left_of_what_a_program_that_ends_by_itself_has_detached(tmp_path, ending, error):
    written = tmp_path / "pids"
    program = f"""
import subprocess, sys
nothing, pids = subprocess.DEVNULL, ""
for outputs in ({{"stdout": nothing, "stderr": nothing}}, {{}}):
    pids += f"{{subprocess.Popen(['sleep', '600'], start_new_session=True, **outputs).pid}} "
open({str(written)!r}, "w").write(pids)
print("why", file=sys.stderr)
print("last", len(pids.split()))
{ending}
"""
    agent = CommandAgent([sys.executable, "-c", program], tmp_path, None)

    async def run() -> str:
        return await asyncio.wait_for(agent.run(ROW, Endpoint("http://none", "")), 60)

    if error:
        with pytest.raises(AgentError, match=error):
            asyncio.run(run())
    else:
        assert asyncio.run(run()) == "last 2"
    for pid in map(int, written.read_text().split()):
        assert process_info(pid) is None


def test_a_program_reads_integers_of_any_size_in_its_row(tmp_path):
    program = "import json, sys; print(json.loads(sys.stdin.readline())['number'])"
    running = CommandAgent([sys.executable, "-c", program], tmp_path, None).run({"number": HUGE}, Endpoint("", ""))
    assert asyncio.run(running) == str(HUGE)


def test_a_program_may_signal_its_own_group(tmp_path):
    program = "import os, signal; signal.signal(15, signal.SIG_IGN); os.killpg(0, 15); print('goes on')"
    agent = CommandAgent([sys.executable, "-c", program], tmp_path, None)
    assert asyncio.run(agent.run(ROW, Endpoint("http://none", ""))) == "goes on"


def test_a_server_that_fails_is_no_failure_of_the_agent(play):
    with pytest.raises(GenerationError):
        play('ask("1")', GenerationError("no server"), failed_reward=0.0)


SWALLOWS = """
def swallow(text):
    try:
        return ask(text)
    except urllib.error.HTTPError:
        return None
ask(row["prompt"])
"""


def test_an_agent_that_goes_on_without_the_answer_of_a_server_that_fails_is_not_trained_on(play):
    texts = ["046", GenerationError("no server"), "047"]
    for program in ('swallow("2")', 'swallow("2"); swallow("3")'):
        with pytest.raises(GenerationError):
            play(SWALLOWS + program, *texts)
    samples, engine = play(SWALLOWS + 'swallow("2") or swallow("2")', *texts)
    engine.check_exact(samples)
    assert [each.metrics["turns"] for each in samples] == [2, 2] and None not in [each.reward for each in samples]


def test_an_agent_sees_neither_the_token_of_the_run_nor_the_key_of_its_servers(play, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "THEIR_KEY")
    for name in ("AREAL_LIKE_TOKEN", "THEIR_KEY"):
        monkeypatch.setenv(name, "secret")
    samples, _ = play('ask("1"); print(int("secret" in os.environ.values()))', "1", reward_from="result")
    assert samples[0].reward == 0


@pytest.mark.parametrize("name", ["asks", "blocks"])
@pytest.mark.parametrize("proxy", ["http_proxy", "ALL_PROXY"])
def test_a_function_reaches_the_policy_around_a_proxy(play, monkeypatch, name, proxy):
    async def no_work(*_: Any) -> None:
        pass

    for each in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(each, "inner.example")
    monkeypatch.setenv(proxy, "http://127.0.0.1:9")
    monkeypatch.setattr(worker, "_main", no_work)
    run: Any = SimpleNamespace(config=SimpleNamespace(workflow=SimpleNamespace(block_timeout_s=None)))
    worker.main(run, Identity(EPISODES, 0))
    samples, engine = play("", "046", function=f"functions.py:{name}")
    engine.check_exact(samples)


def test_programs_and_environments_keep_what_the_user_reaches_without_a_proxy(play, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "inner.example, .other.example")
    monkeypatch.delenv("no_proxy", raising=False)
    kept = "inner.example,.other.example,127.0.0.1,localhost"
    program = f'ask("1"); print(int([os.environ[each] for each in ("NO_PROXY", "no_proxy")] == 2 * ["{kept}"]))'
    assert [each.reward for each in play(program, "1", reward_from="result")[0]] == [1.0]
    variables = environment_process._variables(environment_process.HostedPackage("some", {}, None, (".",)))
    assert (variables["NO_PROXY"], variables["no_proxy"]) == (kept, kept)
    assert around_proxy({"NO_PROXY": "*", "no_proxy": kept}) == {"NO_PROXY": "*", "no_proxy": kept}


def test_a_program_finds_the_policy_by_anthropics_variables_too(play, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "of another service")
    program = """
import anthropic
with anthropic.Anthropic() as policy:
    answer = policy.messages.create(model="any", max_tokens=8, messages=[{"role": "user", "content": row["prompt"]}])
print(float(answer.content[0].text == row["answer"]))
"""
    samples, engine = play(program, "046", reward_from="result")
    engine.check_exact(samples)
    assert [each.reward for each in samples] == [1.0]


class Hanging(GenerationClient):
    """Its server answers once, and not again."""

    def __init__(self, engine: SampledTexts, alive: bool) -> None:
        self._engine, self._alive, self.num_calls = engine, alive, 0

    async def generate(self, route: LeaseRoute, group: dict[str, Any]) -> list[dict[str, Any]]:
        self.num_calls += 1
        if self.num_calls > 1:
            await asyncio.Event().wait()
        return await self._engine.generate(route, group)

    async def is_alive(self, server: str) -> bool:
        return self._alive


@pytest.mark.parametrize("alive", [True, False])
def test_a_call_that_is_open_at_the_end_of_an_agents_time_is_the_fault_of_a_server_that_hangs(tmp_path, alive):
    (tmp_path / "program.py").write_text(f'{PROGRAM}\nask("1")\nask("2")\n')
    made: Any = AgentConfig
    settings = made(command=["python", "program.py"], timeout_s=10.0, failed_reward=-1.0)
    agent = Agent.configured(settings, SearchFolders(tmp_path, tmp_path))
    tokenizer = chat_tokenizer(tmp_path / "chat")
    engine = SampledTexts(tokenizer, "046")

    async def play() -> Any:
        client = Hanging(engine, alive)
        tools = WorkerTools(*(tokenizer, client, Rewards(), False, False, 0.5), gateway=engine.gateway)
        given = lease(0, "here", n=1, row_hash="0", purpose="train")
        try:
            return await agent.run(Episode(tools, given | {"sampling": SAMPLING}), ROW)
        finally:
            await engine.gateway.close()

    if alive:
        assert [each.reward for each in asyncio.run(play())] == [-1.0]
        return
    with pytest.raises(GenerationError, match="here does not answer, and a call is open"):
        asyncio.run(play())
