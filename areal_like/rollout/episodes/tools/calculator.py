"""The tool `calculator`: arithmetic, parsed and never executed."""

import ast
import operator
from collections.abc import Callable
from typing import Any

MAX_CHARACTERS, MAX_NUMBER, MAX_EXPONENT = 400, 1e100, 300
OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv},
    **{ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow},
    **{ast.USub: operator.neg, ast.UAdd: operator.pos},
}


def calculator(expression: str) -> str:
    """Computes an expression of numbers, + - * / // % ** and brackets, such as (3 + 4) * 2.5."""
    if len(expression) > MAX_CHARACTERS:
        raise ValueError(f"the expression has more than {MAX_CHARACTERS} characters")
    try:
        tree = ast.parse(expression.strip().replace("^", "**"), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
        raise ValueError("this is no expression") from None
    value = _value(tree.body)
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _value(node: ast.AST) -> int | float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            value: int | float = number
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            value = OPERATORS[type(op)](_value(operand))
        case ast.BinOp(op=op, left=left, right=right) if type(op) in OPERATORS:
            one, other = _value(left), _value(right)
            if isinstance(op, ast.Pow) and not abs(other) <= MAX_EXPONENT:
                raise ValueError(f"the exponent is above {MAX_EXPONENT}")
            value = OPERATORS[type(op)](one, other)
        case _:
            raise ValueError("only numbers, + - * / // % ** and brackets are known")
    if isinstance(value, complex) or not abs(value) <= MAX_NUMBER:
        raise ValueError("the result is too large, or no real number")
    return value
