"""Arithmetic in text: numbers, + - * / and parentheses, evaluated exactly and never as code."""

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

MAX_LENGTH = 200
"""Characters. A longer text is not parsed, so that none is nested too deeply."""
ALLOWED = re.compile(r"[\d+\-*/()\s]+", re.ASCII)
NUMBER = re.compile(r"\d+", re.ASCII)
SIGNS = str.maketrans({"\u00d7": "*", "\u22c5": "*", "\u00f7": "/", "\u2212": "-"})
OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class NotArithmetic(ValueError):
    """A text that is no expression, or has no value."""


def evaluate(text: str) -> Fraction:
    """The value of an expression; raises NotArithmetic."""
    plain = text.strip().translate(SIGNS)
    if len(plain) > MAX_LENGTH or not ALLOWED.fullmatch(plain):
        raise NotArithmetic(f"{text[:60]!r} is not an expression of numbers, + - * / and parentheses")
    try:
        return _value(ast.parse(plain, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError, SystemError) as fault:
        raise NotArithmetic(f"{text[:60]!r} has no value: {fault}") from fault


def numbers_in(text: str) -> list[int]:
    """The numbers of an expression, from the left to the right."""
    return [int(each) for each in NUMBER.findall(text)]


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return Fraction(node.value)
    raise NotArithmetic(f"{ast.unparse(node)[:60]!r} is not a number, + - * or /")
