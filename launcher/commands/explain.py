"""`--explain KEY`: a value, where it was set, and which values it replaced."""

from collections.abc import Callable, Iterator

from areal_like.config.checks.values import is_interpolation
from areal_like.config.describe.yaml_text import scalar_text
from areal_like.config.dotted_path import MISSING
from areal_like.config.interpolation import WHOLE
from areal_like.config.loaded import Loaded
from areal_like.config.names import ALIASES
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.redact import SECRET
from areal_like.config.schema import ancestors
from areal_like.config.sources.layers import Origin
from areal_like.config.suggest import did_you_mean


def explain(loaded: Loaded, key: str, bold: Callable[[str], str] = str) -> str:
    """The text for one key, or for every key of a section; raises ConfigError for an unknown key."""
    path = ALIASES.get(key, key)
    if loaded.get(path, MISSING) is MISSING and path not in loaded.schema.sections:
        above = next((p for p in ancestors(path) if p in loaded.schema.sections and loaded.get(p) is None), None)
        if above is not None and path in loaded.schema.keys:
            raise ConfigError(
                [Problem(key, f"has no value: {above} is null ({loaded.origin(above).where})", "--explain")]
            )
        raise ConfigError([Problem(key, f"no such key{did_you_mean(path, loaded.schema.names())}", "--explain")])
    if path in loaded.schema.sections and loaded.get(path) is not None:
        prefix = f"{path}." if path else ""
        below = [
            name
            for name in loaded.schema.keys
            if name.startswith(prefix) and "[]" not in name and loaded.get(name, MISSING) is not MISSING
        ]
        return "\n".join(_one_line(loaded, name) for name in below)
    entries = [name for name in loaded.provenance.history if name.startswith(f"{path}.")]
    return "\n".join([*_lines(loaded, path, bold), *(f"  {_entry(loaded, name)}" for name in entries)])


def _entry(loaded: Loaded, path: str) -> str:
    """A key below a map, or below a section that a stronger layer has set to null."""
    if loaded.get(path, MISSING) is not MISSING:
        return _one_line(loaded, path)
    return f"beats {path} = {_with_origin(loaded, path, loaded.origin(path))}"


def _one_line(loaded: Loaded, path: str) -> str:
    return f"{path} = {_shown(loaded, path, loaded.get(path))}  [{loaded.redactor.text(loaded.origin(path).where)}]"


def _lines(loaded: Loaded, path: str, bold: Callable[[str], str]) -> Iterator[str]:
    origin = loaded.origin(path)
    yield f"{bold(path)} = {_shown(loaded, path, loaded.get(path))}"
    yield f"  from  {_with_origin(loaded, path, origin)}"
    yield from _reference(loaded, loaded.get_raw(path), seen=[path])
    for beaten in origin.beaten:
        yield f"  beats {_with_origin(loaded, path, beaten)}"


def _reference(loaded: Loaded, raw: object, seen: list[str]) -> Iterator[str]:
    """Follows a plain reference to the key that holds the value."""
    match = WHOLE.fullmatch(raw) if isinstance(raw, str) else None
    if match is None:
        return
    source = ALIASES.get(match[1], match[1])
    if source in seen:
        return
    origin = loaded.origin(source)
    place = loaded.redactor.text(_place(origin))
    yield f"  via   {source} = {_shown(loaded, source, loaded.get_raw(source))}  [{place}]"
    yield from _reference(loaded, loaded.get_raw(source), [*seen, source])


def _with_origin(loaded: Loaded, path: str, origin: Origin) -> str:
    place = _place(origin)
    return f"{_shown(loaded, path, origin.value)}  [{loaded.redactor.text(place)}]"


def _place(origin: Origin) -> str:
    return origin.where if origin.kind in ("default", "override") else f"{origin.kind}: {origin.where}"


def _shown(loaded: Loaded, path: str, value: object) -> str:
    shown = value if is_interpolation(value) else loaded.redactor.value(path, value)
    return SECRET if shown == SECRET else scalar_text(shown)
