"""Interpolations: references such as `${a.b}` from one value to another.

Plain references are resolved here, with messages that name both keys; OmegaConf resolves everything else
(`${oc.env:NAME}`, relative references, nesting).
"""

import os
import re
from typing import Any

from areal_like.config.names import ALIASES
from areal_like.config.suggest import did_you_mean

NAME = r"[A-Za-z_][\w-]*(?:\.[\w-]+)*"
WHOLE = re.compile(rf"\$\{{\s*({NAME})\s*\}}")
PLAIN = re.compile(rf"\$\{{\s*({NAME})\s*\}}")


ENVIRONMENT = re.compile(r"\$\{oc\.env:([^,}]+)(?:,[^}]*)?\}")


class FromEnvironment(str):
    """Text from the environment; for a number or a boolean it is parsed like a YAML scalar."""


class BrokenReference(Exception):
    """A reference to no key, or a cycle."""


def syntax_error(text: str) -> str | None:
    """The syntax error of an interpolation, or None."""
    rest = PLAIN.sub("", text)
    if "${" not in rest:
        return None
    from omegaconf.errors import OmegaConfBaseException
    from omegaconf.grammar_parser import parse

    try:
        parse(text)
    except (OmegaConfBaseException, RecursionError, ValueError):
        return f"{text[:60]!r} is not an interpolation; write ${{section.key}}, or \\${{ for a literal ${{"
    return None


def references_in(value: Any) -> list[str]:
    """The paths of the plain references in a value, short names replaced."""
    if isinstance(value, dict):
        return [path for item in value.values() for path in references_in(item)]
    if isinstance(value, list):
        return [path for item in value for path in references_in(item)]
    return [ALIASES.get(path, path) for path in PLAIN.findall(value)] if isinstance(value, str) else []


class ReferenceResolver:
    """Resolves the references of one tree."""

    def __init__(self, tree: dict[str, Any], names: list[str]) -> None:
        self.tree, self.names = tree, names
        self.following: list[str] = []
        self._omegaconf: Any = None

    def resolve(self, path: str, value: Any) -> Any:
        """The value at `path` with every reference resolved; raises BrokenReference."""
        if isinstance(value, dict):
            return {name: self.resolve(f"{path}.{name}", item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.resolve(f"{path}.{index}", item) for index, item in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        if path in self.following:
            circle = " -> ".join([*self.following[self.following.index(path) :], path])
            raise BrokenReference(f"refers to itself: {circle}")
        self.following.append(path)
        try:
            whole = WHOLE.fullmatch(value)
            if whole:
                return self._look_up(whole[1])
            if "\\" not in value and "${" not in PLAIN.sub("", value):
                return PLAIN.sub(lambda match: _text(self._look_up(match[1]), match[1]), value)
            return self._by_omegaconf(path, value)
        finally:
            self.following.pop()

    def _look_up(self, reference: str) -> Any:
        reference = ALIASES.get(reference, reference)
        node: Any = self.tree
        walked: list[str] = []
        for name in reference.split("."):
            if isinstance(node, str) and "${" in node:
                node = self.resolve(".".join(walked), node)
            if node is None:
                raise BrokenReference(f"refers to ${{{reference}}}, but {'.'.join(walked)} is null here")
            if isinstance(node, list) and name.isdigit() and int(name) < len(node):
                node = node[int(name)]
            elif isinstance(node, dict) and name in node:
                node = node[name]
            else:
                raise BrokenReference(f"refers to ${{{reference}}}: no such key{did_you_mean(reference, self.names)}")
            walked.append(name)
        return self.resolve(reference, node)

    def _by_omegaconf(self, path: str, value: str) -> Any:
        from omegaconf import Container, OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        if self._omegaconf is None:
            self._omegaconf = OmegaConf.create(self.tree)
        try:
            node = self._omegaconf
            *above, name = path.split(".")
            for step in above:
                node = node[int(step) if isinstance(node, list) or OmegaConf.is_list(node) else step]
            resolved = node[int(name) if OmegaConf.is_list(node) else name]
            if isinstance(resolved, Container):
                return OmegaConf.to_container(resolved, resolve=True)
            return FromEnvironment(resolved) if isinstance(resolved, str) and ENVIRONMENT.fullmatch(value) else resolved
        except OmegaConfBaseException as error:
            for name in ENVIRONMENT.findall(value):
                if name not in os.environ:
                    message = f"the environment variable {name} is not set; write ${{oc.env:{name},default}}"
                    raise BrokenReference(f"{message} to make it optional") from None
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise BrokenReference(f"{value!r} cannot be resolved: {reason}") from None
        except (RecursionError, KeyError, IndexError, ValueError, TypeError) as error:
            raise BrokenReference(f"{value!r} cannot be resolved ({type(error).__name__})") from None


def resolved(tree: dict[str, Any]) -> dict[str, Any]:
    """The values of a file with few references. One that cannot be resolved here, as its variable is not set, stays."""
    resolver = ReferenceResolver(tree, [])

    def of(path: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: of(f"{path}.{name}" if path else str(name), item) for name, item in value.items()}
        if isinstance(value, list):
            return [of(f"{path}.{index}", item) for index, item in enumerate(value)]
        try:
            found = resolver.resolve(path, value)
        except BrokenReference:
            return value
        return str(found) if isinstance(found, FromEnvironment) else found

    return {name: of(name, item) for name, item in tree.items()}


def _text(value: Any, reference: str) -> str:
    if isinstance(value, dict | list):
        raise BrokenReference(f"${{{reference}}} is not a single value and cannot be part of a text")
    if value is None or isinstance(value, bool):
        return {None: "None", True: "True", False: "False"}[value]
    return str(value)
