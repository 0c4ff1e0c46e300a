"""A text environment of tests: two sums or more, one after the other."""

TOTALS = """
import random

class Totals:
    def __init__(self, rounds=2):
        self.rounds = rounds
    def reset(self, *, seed=None, options=None):
        self.left, self.numbers = self.rounds, random.Random(seed)
        return self._question(), {}
    def step(self, action):
        self.left, right = self.left - 1, action == self.answer
        return self._question(), float(right), self.left == 0, False, {"score": float(right)}
    def _question(self):
        a, b = (self.numbers.randrange(10, 50) for _ in range(2))
        self.answer = f"{a + b:03}"
        return f"{a}+{b}="
"""
