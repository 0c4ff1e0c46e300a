"""What an unknown key probably is, when it is no slip of the pen."""

from dataclasses import dataclass, replace

from areal_like.config.dialects.areal import DROPPED_KEYS, subclass_keys
from areal_like.config.experiment import EXPERIMENTS
from areal_like.config.problems import Problem
from areal_like.config.schema import Schema
from areal_like.config.sources.yaml_file import YamlNode

UNKNOWN = "no such key"


@dataclass(frozen=True)
class UnknownKeyHints:
    """Knows the experiment that a problem is from; `own_class` says that its class is one of the user's."""

    experiment: str
    schema: Schema
    body: dict[str, YamlNode]
    own_class: bool

    def for_problem(self, problem: Problem, package: str = "") -> Problem:
        """The same problem with more to go by: the key is one of another kind of experiment, or stands in a group
        file that means the top of the tree, or is declared in a class that we were not told."""
        if not problem.message.startswith(UNKNOWN):
            return problem
        section = problem.key.partition(".")[0]
        others = [kind for kind, cls in EXPERIMENTS.items() if section in Schema.of(cls).sections]
        if others and self.experiment not in others:
            message = f"a {self.experiment} experiment has no {section} (experiment={' or '.join(others)} has)"
            return replace(problem, message=message)
        if package and self._means_the_top(problem.key, package):
            message = f"{UNKNOWN}; the file of a group sets keys below its folder's name ({package})"
            return replace(problem, message=f"{message}; begin it with `# @package _global_` to set others")
        if (instead := DROPPED_KEYS.get(problem.key.rpartition(".")[2])) is not None:
            return replace(problem, message=f"{UNKNOWN}: AReaL had it once, and has dropped it; {instead}")
        if self.own_class:
            return problem
        known = subclass_keys({name: node.plain() for name, node in self.body.items()})
        if problem.key in known:
            return replace(problem, message=known[problem.key])
        if problem.message == UNKNOWN:
            message = f"{UNKNOWN}; if it is one of your own, name the class that has it: --schema my.module:MyConfig"
            return replace(problem, message=message)
        return problem

    def _means_the_top(self, key: str, package: str) -> bool:
        below = key.removeprefix(f"{package}.")
        top = {name.partition(".")[0] for name in self.schema.names()}
        return key == package or (below != key and below.partition(".")[0] in top)
