"""Hides secrets in output: by the schema's mark, by the name of a key, and inside texts."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

SECRET = "<secret>"
MIN_SECRET_LENGTH = 6
"""A shorter value is hidden under its key, but not replaced in other texts."""
MIN_LINE_LENGTH = 12
"""Of a secret of several lines. A shorter line may be a word of other texts."""

_WRITERS: tuple[Callable[[str], str], ...] = (
    lambda text: repr(text)[1:-1],
    lambda text: repr(f'{text}"')[1:-2],  # within a text that has the other quotes, too
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
)
"""How Python and JSON write a text, without its quotes."""

_HINTS = ("key", "token", "pass", "pwd", "pat", "secret", "credential", "authorization", "cookie", "bearer")
_ENDINGS = r"(?:api[_-]?key|access[_-]?key|secret[_-]?key|private[_-]?key|auth[_-]?key|token|password|passwd|passphrase"
_ENDINGS += r"|secret|credentials?|authorization|cookie|bearer|[_-](?:pass|pwd|pat))"
_NAME = rf"(?i:(?:^|[^a-z0-9]){_ENDINGS}$|[a-z](?:[_-](?:pass|pwd|pat)|password)$|^key$)|[A-Z0-9]_KEY$"
_CAMEL = r"(?<=[a-z0-9])(?=[A-Z])"
_SCHEME = r"^(?i:bearer|basic|token|digest)\s+(\S+)"
_ASSIGNMENT = (
    rf"(?P<name>(?<![\w.-])(?:[\w.-]*(?i:{_ENDINGS})|[A-Z0-9_]+_KEY)['\"]?\s*[=:]\s*)"
    r"(?P<value>'[^']*'|\"[^\"]*\"|(?:(?i:bearer|basic|token|digest)\s+(?=\S))?[^\s,;}\]]+)"
)
_ACCOUNT = r"(?<=[\w+.-]://)[^/\s]*@"
_WITH_A_DIGIT = r"(?=[^\s\d]*\d)"
_IN_WORDS = re.compile(
    r"(?P<name>\b(?:(?i:bearer)\s+|(?i:api[ _-]?key|token|password|passphrase|secret(?:[ _-]key)?)\s+"
    r"(?i:provided|given|is|was)\s*[:=]?\s+)"
    rf"['\"]?)(?=\d*[^\s\d]*[A-Za-z]){_WITH_A_DIGIT}[\w.~+/=*-]{{8,}}"
)
"""Sentences such as "the password is hunter2xyz"; words without a digit are hardly secrets."""
_SIGNATURE = re.compile(r"(?P<name>[?&](?i:[\w-]*signature|sig)=)[^&\s'\"]+")
_WELL_KNOWN = re.compile(
    r"(?<![\w-])(?:"
    rf"(?:sk|rk|pk)-{_WITH_A_DIGIT}[\w-]{{10,}}|hf_{_WITH_A_DIGIT}[A-Za-z0-9]{{20,}}|gh[opsur]_[A-Za-z0-9]{{16,}}"
    r"|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abeoprs]-[\w-]{10,}|A[KS]IA[A-Z0-9]{12,}|AIza[\w-]{30,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
"""Tokens of providers, by how they begin."""


def _may_hide(text: str) -> bool:
    """A fast check first: nearly no text has a secret."""
    lowered = text.lower()
    return any(hint in lowered for hint in _HINTS)


def is_secret_name(name: str) -> bool:
    """Whether a key of this name holds a secret: `wandb_api_key`, `HF_TOKEN`; not `max_new_tokens`, `api_key_var`."""
    return _may_hide(name) and re.search(_NAME, re.sub(_CAMEL, "_", name)) is not None


def scrub(text: str) -> str:
    """A text without values after secret names, without well-known tokens, and without accounts and signatures in
    URLs."""
    text = _scrub_names(text)
    if _may_hide(text):
        text = _IN_WORDS.sub(lambda match: match["name"] + SECRET, text)
    if "://" in text:
        text = _SIGNATURE.sub(lambda match: match["name"] + SECRET, text)
    return _WELL_KNOWN.sub(SECRET, text)


def _scrub_names(text: str) -> str:
    """Enough for values of keys, which are also written to config.yaml: a path may look like a token."""
    if _may_hide(text):
        text = re.sub(_ASSIGNMENT, lambda match: match["name"] + SECRET, text)
    return re.sub(_ACCOUNT, f"{SECRET}@", text) if "://" in text else text


def redact(path: str, value: Any, marked: bool = False) -> Any:
    """The value of a key for output. Numbers, booleans and empty values are never secrets."""
    if value is None or isinstance(value, bool | int | float) or value == "":
        return value
    name = path.rpartition(".")[2]
    if marked or is_secret_name(name):
        return SECRET
    if isinstance(value, dict):
        return {str(key): redact(f"{path}.{key}", item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(path, item) for item in value]
    return _scrub_names(value) if isinstance(value, str) else value


def remove_secrets(text: str, secrets: tuple[str, ...]) -> str:
    """A text without these values."""
    for secret in secrets:
        text = text.replace(secret, SECRET)
    return text


def written_forms(secrets: Iterable[str]) -> tuple[str, ...]:
    """Secrets that are long enough, longest first, in all forms in which they may stand in a text: as they are, each
    of their lines, and as Python and JSON write them, also within a text that is written so again."""
    forms = {each for secret in secrets for each in (secret, secret.strip()) if len(each) >= MIN_SECRET_LENGTH}
    lines = {line.strip() for secret in forms for line in secret.splitlines()}
    forms |= {line for line in lines if len(line) >= MIN_LINE_LENGTH}
    for _ in range(2):
        forms |= {write(form) for form in forms for write in _WRITERS}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def secret_values(tree: Any, marked: frozenset[str], path: str = "") -> list[str]:
    """The values of all secret keys of a tree, longest first."""
    secrets = _collect(tree, marked, path)
    return sorted(set(secrets), key=lambda value: (-len(value), value))


def _collect(value: Any, marked: frozenset[str], path: str) -> list[str]:
    if isinstance(value, dict):
        places = ((f"{path}.{key}" if path else str(key), item) for key, item in value.items())
        return [text for place, item in places for text in _collect(item, marked, place)]
    if isinstance(value, list):
        return [text for item in value for text in _collect(item, marked, path)]
    if not isinstance(value, str) or not value:
        return []
    if path in marked or is_secret_name(path.rpartition(".")[2]):
        return [value, *re.findall(_SCHEME, value)]
    if not _may_hide(value):
        return []
    secrets = [match["value"].strip("'\"") for match in re.finditer(_ASSIGNMENT, value)]
    return [*secrets, *(token for text in secrets for token in re.findall(_SCHEME, text))]


class Redactor:
    """Hides the secrets of one configuration in values, texts and commands."""

    def __init__(self, marked: frozenset[str], values: dict[str, Any], beaten: Sequence[dict[str, Any]] = ()) -> None:
        self.marked = marked
        secrets = {text for tree in (values, *beaten) for text in secret_values(tree, marked)}
        self.secrets = written_forms(text for text in secrets if "${" not in text)

    def also_of(self, values: Mapping[str, Any]) -> "Redactor":
        """One that hides the secrets of other values, too."""
        both = Redactor(self.marked, dict(values))
        both.secrets = tuple(sorted({*both.secrets, *self.secrets}, key=lambda text: (-len(text), text)))
        return both

    def value(self, path: str, value: Any) -> Any:
        return self.everywhere(redact(path, value, marked=path in self.marked))

    def text(self, text: str) -> str:
        return remove_secrets(scrub(text), self.secrets)

    def everywhere(self, value: Any) -> Any:
        """Texts, or trees of texts, without secret values."""
        if isinstance(value, str):
            return remove_secrets(value, self.secrets)
        if isinstance(value, dict):
            return {key: self.everywhere(item) for key, item in value.items()}
        return [self.everywhere(item) for item in value] if isinstance(value, list) else value

    def command(self, words: list[str]) -> list[str]:
        """A command line without secrets, also if flag and value are separate words."""
        shown, hide = [], False
        for word in words:
            shown.append(SECRET if hide else self.text(word))
            hide = word.startswith("-") and "=" not in word and is_secret_name(word)
        return shown

    def environment(self, variables: dict[str, str]) -> dict[str, str]:
        return {
            name: SECRET if value and is_secret_name(name) else self.text(value) for name, value in variables.items()
        }
