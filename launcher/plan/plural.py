"""A number with its noun."""


def plural(number: int, noun: str, nouns: str = "") -> str:
    """1 row, 2 rows"""
    return f"{number} {noun}" if number == 1 else f"{number} {nouns or noun + 's'}"
