"""Programs of one line: the row says in words what to compute, and has tests."""

from collections.abc import Sequence
from typing import Literal

from areal_like.config.argument_types import Count
from areal_like.data.tasks.base import RewardValue, Row
from areal_like.data.tasks.generated import HashDraws, generate_rows
from areal_like.data.tasks.rewards import score_by_position

Step = tuple[str, int]

SIGNS = (("plus", "+"), ("minus", "-"), ("times", "*"), ("mod", "%"))
PRODUCTS = ("times", "mod")
FORMS = ("int(input())", "input()", "input()")
NUM_TESTS, MAX_INPUT, MAX_OPERAND = 3, 99, 20


class Programs:
    """Rows as `n plus 3, times 4:` and a fenced block with `print((int(input())+3)*4)`. `tests` has inputs and what
    the program prints, for the reward `code`. `mixed_forms`: most rows' `answer` forgets to make a number of the
    input."""

    def __init__(self, max_steps: Literal[1, 2, 3] = 2, mixed_forms: bool = False, num_rows: Count = 10_000) -> None:
        if isinstance(max_steps, bool) or not isinstance(max_steps, int) or not 1 <= max_steps <= 3:
            raise ValueError(f"max_steps must be a number from 1 to 3, not {max_steps!r}")
        self.max_steps, self.num_rows = max_steps, num_rows
        self.forms = FORMS if mixed_forms else FORMS[:1]

    def rows(self, split: str) -> Sequence[Row]:
        return generate_rows(self.num_rows, split, self.row)

    def row(self, number: int) -> Row:
        draws = HashDraws(f"program of {self.max_steps} steps: {number}")
        steps = [_step(draws) for _ in range(1 + draws.below(self.max_steps))]
        inputs = [draws.below(MAX_INPUT + 1) for _ in range(NUM_TESTS)]
        *first, (word, operand) = steps
        form = self.forms[draws.below(len(self.forms))]
        answer, wrong = _program(form, steps), _program(form, [*first, (word, 2 + (operand - 1) % (MAX_OPERAND - 1))])
        return {
            "prompt": f"n {', '.join(f'{word} {operand}' for word, operand in steps)}:",
            "answer": answer,
            "chosen": answer,
            "rejected": wrong,
            "tests": [{"input": str(given), "output": str(_result(steps, given))} for given in inputs],
        }

    def reward(self, prompt: object, completion: str, answer: str) -> RewardValue:
        """Of the text alone; the reward `code` runs it."""
        return score_by_position(completion, answer, "characters")


def _step(draws: HashDraws) -> Step:
    return SIGNS[draws.below(len(SIGNS))][0], 2 + draws.below(MAX_OPERAND - 1)


def _program(code: str, steps: Sequence[Step]) -> str:
    is_sum = False
    for word, operand in steps:
        code = f"({code})" if is_sum and word in PRODUCTS else code
        code, is_sum = f"{code}{dict(SIGNS)[word]}{operand}", word not in PRODUCTS
    return f"```\nprint({code})\n```"


def _result(steps: Sequence[Step], value: int) -> int:
    for word, operand in steps:
        results = {"plus": value + operand, "minus": value - operand, "times": value * operand, "mod": value % operand}
        value = results[word]
    return value
