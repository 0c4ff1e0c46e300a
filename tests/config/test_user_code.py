"""User code that a key names (task, workflow, reward, loss) exists and takes its arguments; nothing is imported."""

import sys
from pathlib import Path

import pytest

from areal_like.config.built_in import LOSSES
from areal_like.config.load import load
from areal_like.config.problems import ConfigError

FILE = "experiment_name: e\nactor: {path: m}\n"
CODE = """
raise SystemExit("a configuration that is only checked must not run this")

def reward(prompt, completion, *, scale=1.0): ...
async def open_reward(prompt=None, completion=None, **row): ...
class Workflow:
    def __init__(self, turns, tool=None): ...
    async def run(self, episode, row): ...
class NoEngine:
    async def run(self, row): ...
class Late:
    def run(self, episode, row): ...
class NoRun:
    turns = 2
    async def rnu(self, episode, row): ...
class Bound:
    run = make_run()
class Starred:
    async def run(self, *args): ...
class Static:
    @staticmethod
    async def run(episode, row, *, turns=1): ...
class Wrapped:
    @traced
    async def run(self, row): ...
class Rows:
    def rows(self): ...
class Task:
    def rows(self, split): ...
    def reward(self, completion): ...
class Judge:
    def __call__(self, completion): ...
class GoodJudge:
    def __call__(self, prompt, completion, answer, *, steps): ...
def half(completion, *, answer): ...
class Inherited(Base):
    pass
def loss(logprobs, advantages, *, weights, beta=0.1): ...
def greedy_loss(logprobs, tokens, *, gamma): ...
alias = reward
number: int = 3
number = 4
late = None
class Sampler:
    def __init__(self, share=0.5): ...
    def draw(self, rows, count, random): ...
    def resume(self): ...
class Gate:
    def admits(self, group, *, more=1): ...
if True:
    class Choice:
        async def run(self, row): ...
else:
    class Choice:
        async def run(self, episode, row): ...
if True:
    def hidden(prompt, completion): ...
    late = reward
def chosen(prompt, completion, unit: Literal["a", "b"] | None = None, more: Other = 1): ...
async def play(episode, row): ...
def begin(): ...
def made(turns):
    return NoEngine(turns)
class NoReset:
    def step(self, action): ...
class Inherits(Base):
    def step(self, one, two): ...
"""


def refused(tmp_path: Path, *overrides: str) -> str:
    (tmp_path / "code.py").write_text(CODE)
    (tmp_path / "pkg").mkdir(exist_ok=True)
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "mod.py").write_text(CODE)
    file = tmp_path / "f.yaml"
    file.write_text(FILE)
    try:
        load(file, overrides)
    except ConfigError as error:
        assert len(error.problems) == 1, str(error)
        return error.problems[0].text()
    return ""


@pytest.mark.parametrize(
    "overrides",
    [
        ["reward.name=code.py:reward", "+reward.args.scale=2"],
        ["reward.name=code.py:open_reward", "+reward.args.anything=2"],
        ["workflow.name=pkg.mod:Workflow", "+workflow.args.turns=2"],
        ["workflow.name=code.py:Inherited", "+workflow.args.who=knows"],
        ["workflow.name=code.py:Choice"],
        ["workflow.name=code.py:Bound"],
        ["workflow.name=code.py:Starred"],
        ["workflow.name=code.py:Static"],
        ["workflow.name=code.py:Wrapped"],
        ["task.name=code.py:Task", "reward.name=addition"],
        ["reward.name=code.py:GoodJudge"],
        ["reward.name=code.py:alias"],
        ["reward.name=code.py:hidden"],
        ["workflow.name=tools", "+workflow.args.tools=[calculator,'code.py:reward','code.py:open_reward']"],
        ["workflow.name=tools", "+workflow.args.tools=[search]", "+workflow.args.search_path=texts"],
        ["workflow.name=tools", "+workflow.args.result_text=' {result};'"],
        ["workflow.name=code.py:made", "+workflow.args.turns=2"],
        ["task.name=code.py:Inherits", "reward.name=addition"],
        ["task.name=addition", "+task.args.digits=3"],
        ["reward.name=length", "+reward.args.limit=20", "+reward.args.unit=words"],
        ["reward.name=code.py:chosen", "+reward.args.unit=b", "+reward.args.more=any"],
        ["reward.name=code.py:chosen", "+reward.args.unit=null"],
        ["reward.name=code.py:late"],
        ["reward.name=a_package_of_the_cluster.rewards:thing"],
        ["actor.loss=code.py:loss", "+actor.loss_args.beta=0.5"],
        ["actor.loss=pkg.mod.loss"],
        ["actor.loss=pkg.mod:loss"],
        ["actor.loss=os.path:join"],
        ["actor.loss=math:fsum"],
        ["actor.loss=code.py:open_reward"],
        ["curriculum.gates=[{name: 'code.py:Gate'}, {name: mean_reward, args: {low: 0.1}}, {name: advantage_range}]"],
    ],
)
def test_valid_user_code_is_accepted_with_its_arguments(tmp_path: Path, overrides: list[str]) -> None:
    assert refused(tmp_path, *overrides) == ""


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["reward.name=additon"], "'additon' is not built in; did you mean addition?"),
        (["task.name=nothing_like_it"], "is not built in. There are: addition, countdown, counting,"),
        (["task.name=addition", "+task.args.digit=3"], "task.args.digit [override +task.args.digit=3]: addition takes"),
        (["reward.name=code.py:rewrd"], "has no rewrd; did you mean reward?"),
        (["reward.name=code.py:reward", "+reward.args.scal=2"], "did you mean scale?"),
        (["workflow.name=pkg.mod:Workflow", "+workflow.args.turn=2"], "did you mean turns?"),
        (["reward.name=cod.py:reward"], "there is no file cod.py"),
        (["reward.name='code.py:'"], "is not a valid name"),
        (
            ["workflow.name=code.py:NoEngine"],
            "takes (self, row) and is called as run(episode, row); write `async def run(self, episode, row)`",
        ),
        (["workflow.name=code.py:Late"], "run of code.py:Late (line 12) is not async; write `async def run(self,"),
        (["workflow.name=code.py:NoRun"], "code.py:NoRun has no method run; write `async def run(self, episode, row)`"),
        (
            ["curriculum.sampler.name=code.py:Sampler"],
            "resume of code.py:Sampler (line 47) takes (self) and is called as",
        ),
        (["curriculum.sampler.name=code.py:Gate"], "curriculum.sampler.name [override curriculum.sampler.name=code.py"),
        (["curriculum.sampler.name=hardest"], "'hardest' is not built in; your own is named as pkg.module:thing or"),
        (["curriculum.gates=[{name: 'code.py:Late'}]"], "code.py:Late has no method admits; write `def admits(self"),
        (["curriculum.gates=[{name: mean_rewrd}]"], "'mean_rewrd' is not built in; did you mean mean_reward?"),
        (
            ["curriculum.gates=[{name: 'code.py:Gate'}, {name: mean_reward, args: {lowest: 1}}]"],
            "curriculum.gates.1.args.lowest",
        ),
        (["curriculum.gates=[{name: mean_reward, args: {low: few}}]"], "curriculum.gates.0.args.low"),
        (["curriculum.sampler.name=pkg.of.cluster:It", "curriculum.type=simple"], "draws the rows; keep one of them"),
        (["task.name=code.py:Rows"], "takes (self) and is called as rows(split); write `def rows(self, split)`"),
        (["task.name=code.py:Task"], "takes (self, completion) and is called as reward(prompt, completion); write"),
        (["reward.name=code.py:Judge"], "takes (self, completion) and is called as __call__(prompt, completion); wr"),
        (["reward.name=code.py:half"], "takes (completion, *, answer) and is called as half(prompt, completion); wr"),
        (["workflow.name=tools", "+workflow.args.tools=['code.py:rewrad']"], "workflow.args.tools"),
        (["workflow.name=tools", "+workflow.args.tools=['code.py:rewrad']"], "has no rewrad; did you mean reward?"),
        (["workflow.name=tools", "+workflow.args.tools=[python,'no.py:f']"], "there is no file no.py"),
        (["workflow.name=tools", "+workflow.args.tools=['code.py:number']"], "code.py:number is 4, not a function"),
        (["workflow.name=tools", "+workflow.args.tools=['code.py:GoodJudge']"], "code.py:GoodJudge is a class, not a"),
        (["curriculum.gates=[{name: mean_reward, args: {low: 2}}]"], "gates.0.args.low"),
        (["curriculum.gates=[{name: mean_reward, args: {low: 2}}]"], "low=2 is above high=0.99 of mean_reward"),
        (["curriculum.gates=[{name: advantage_range, args: {high: -1}}]"], "gates.0.args.high"),
        (
            ["workflow.name=tools", "+workflow.args.tools=[search]"],
            "is missing; the tool search needs it: +workflow.args.search_path=FOLDER",
        ),
        (["workflow.name=tools", "+workflow.args.result_text='so'"], "is 'so'; expected a text with {result}"),
        (["workflow.name=code.py:play"], "code.py:play is a function (line 60); write a class with `async def run("),
        (["workflow.name=code.py:made"], "code.py:made is a function (line 62); write a class with `async def run("),
        (["task.name=code.py:begin", "reward.name=addition"], "write a class with `def rows(self, split)`"),
        (["task.name=code.py:NoReset", "reward.name=addition"], "has no method reset; write `def reset(self, seed)`"),
        (["task.name=addition", "+task.args.digits=7"], "is 7; expected one of 1, 2, 3"),
        (["reward.name=length", "+reward.args.limit=20", "+reward.args.unit=chars"], "one of characters, words"),
        (["reward.name=code.py:chosen", "+reward.args.unit=c"], "reward.args.unit [override +reward.args.unit=c]: is"),
        (["reward.name=code.py:chosen", "+reward.args.unit=c"], "is 'c'; expected one of a, b"),
        (["reward.name=regex", "+reward.args.pattern=2"], 'is 2; expected a regular expression; quote it: pattern="2"'),
        (["actor.loss=gspo"], f"is not built in. There are: {', '.join(LOSSES)};"),
        (["actor.loss=pkg.mod.los"], "has no los; did you mean loss?"),
        (["actor.loss=code.py"], "is not a valid name"),
        (
            ["actor.loss=code.py:greedy_loss"],
            "=code.py:greedy_loss]: code.py:greedy_loss needs gamma, tokens, but a loss gets logprobs, ",
        ),
        (
            ["actor.loss=code.py:greedy_loss"],
            "weights, kl_ctl, by these names; rename parameters that mean one of them,",
        ),
        (["actor.loss=code.py:number"], "code.py:number is 4, not a function"),
        (["workflow.name=code.py:number"], "code.py:number is 4, not a class"),
        (["actor.loss=code.py:Workflow"], "code.py:Workflow is a class, not a function"),
        (["actor.loss=a_package_of_nobody.losses:thing"], "there is no module a_package_of_nobody.losses (searched"),
        (["actor.loss=pkg.nothing:thing"], "there is no module pkg.nothing (searched"),
        (["actor.loss=code.py:loss", "+actor.loss_args.beat=1"], "did you mean beta?"),
        (["actor.loss=code.py:loss", "+actor.loss_args.logprobs=1"], "is passed by the trainer"),
        (["actor.loss=ppo", "+actor.loss_args.beta=1"], "ppo takes no such argument"),
        (["actor.loss=ppo", "+actor.loss_args.eps_clip=1"], "is a key by itself for ppo; set actor.eps_clip instead"),
        (["actor.loss=sapo", "+actor.loss_args.tau_poss=1"], "did you mean tau_pos? It takes: tau_pos, tau_neg."),
        (["actor.loss=sapo", "+actor.loss_args.tau_pos=0"], "is 0; expected a number above 0"),
        (["actor.loss=sapo", "+actor.loss_args.tau_pos=true"], "True is not a number; expected a number above 0"),
        (["actor.loss=dppo", "+actor.loss_args.kl_tau=-1"], "is -1; expected a number of 0 or more"),
    ],
)
def test_missing_user_code_or_wrong_arguments_are_refused(tmp_path: Path, overrides: list[str], message: str) -> None:
    assert message in refused(tmp_path, *overrides)


def test_a_pattern_that_cannot_be_compiled_for_its_depth_is_refused(tmp_path: Path) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # Python's own: libraries that other tests import raise it
    try:
        pattern = "(" * 600 + "a" + ")" * 600
        assert "expected a regular expression" in refused(
            tmp_path, "reward.name=regex", f"+reward.args.pattern='{pattern}'"
        )
    finally:
        sys.setrecursionlimit(limit)


def test_user_code_with_a_syntax_error_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n")
    assert "cannot be read as Python: SyntaxError (line 2): invalid syntax" in refused(
        tmp_path, "reward.name=broken.py:f"
    )
