"""What a scorer that evaluates answers may read: values, and nothing that runs."""

import pytest

from areal_like.data.tasks.readable_answers import UNREADABLE, readable, states_a_value


@pytest.mark.parametrize(
    "answer",
    [
        *("5 + 3*(2 - 1)", "x**3/3 + C", "-2*cos(x)*sin(x) + log(x)/2", "2.5e3*x", "1.5 + x.", "abs(x) + pow(x, 2)"),
        *(
            "[[0, 1], [1, 0]]",
            "['A', 'B', 'C']",
            "[('_', 'Q'), ('Q', '_')]",
            "0 1\n1 0",
            "_ _ Q _\nQ _ _ _",
            "0x1f",
            "AABCD",
            "[-1.5, 2.25]",
            "",
        ),
        *("so it is 5. Then x follows", "1/(x.5)", "$\\frac{x}{2}$"),
    ],
)
def test_an_answer_that_states_a_value_is_read(answer: str) -> None:
    assert readable(answer) == answer


@pytest.mark.parametrize(
    "answer",
    [
        *("exec(x)", "(exec)(x)", "open", "exec(bytes([1]))!", "[0 for _ in iter(int, 1)]", "getattr(x, y)"),
        *("\U0001d4eexec(x)", "__import__('os')", "x.func", "(1).real", "1 .real", "x .func", "x. func"),
        *("[].pop", "f(x).args"),
        *("'exec(x)'", "sqrt('x')", "['exec(x)']", '"a" + "b"', "f'{x}'", "(lambda: 1)()", "print(1)", "chr(120)"),
    ],
)
def test_an_answer_with_code_is_not_read(answer: str) -> None:
    assert not states_a_value(answer) and readable(answer) == UNREADABLE
