"""Keys that differ from their defaults, where they were set, and which values they replaced."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from areal_like.config.dotted_path import MISSING
from areal_like.config.problems import ConfigError, Problem
from areal_like.config.redact import Redactor
from areal_like.config.schema import is_list_of_sections
from launcher.plan.plan import BaseSetting, ChangedSetting, ReplacedFileValue, ReplacedValue

if TYPE_CHECKING:
    from areal_like.config.allocation import Machine
    from areal_like.config.loaded import Loaded
    from areal_like.config.sources.layers import Origin

BODY, CHOSEN, OVERRIDE = "file", "group of the command line", "override"
KNOWN = ("known dataset", "known example")


def changed_settings(loaded: "Loaded", redactor: Redactor) -> tuple[ChangedSetting, ...]:
    """In the order of the configuration."""
    settings = []
    for path in loaded.changed():
        origin = loaded.origin(path)
        default = next((weaker.value for weaker in origin.beaten if weaker.kind == "default"), None)
        beaten = tuple(
            ReplacedValue(redactor.value(path, weaker.value), redactor.text(weaker.where))
            for weaker in origin.beaten
            if weaker.kind != "default"
        )
        value = redactor.value(path, loaded.get(path))
        settings.append(ChangedSetting(path, value, redactor.text(origin.where), redactor.value(path, default), beaten))
    return tuple(settings)


def settings_over_base(loaded: "Loaded", redactor: Redactor, machine: "Machine") -> tuple[BaseSetting, ...]:
    """Keys set by the command line, by the name of a dataset, and by the body of the file where they differ from its
    defaults list; in the order of the configuration."""
    settings, alone = [], _without_command_line(loaded, machine)
    replaced = [path for path in alone.provenance.history if path not in loaded.provenance.history] if alone else []
    for path in (*loaded.provenance.history, *replaced):
        origin = loaded.origin(path)
        typed = origin.kind in (OVERRIDE, CHOSEN) or path in replaced
        value = _written(loaded, path)
        if value is MISSING or (not typed and origin.kind not in (BODY, *KNOWN)):
            continue
        over, known = (OVERRIDE, CHOSEN) if typed else (BODY, *KNOWN), origin.kind in KNOWN
        base = next((weaker.value for weaker in origin.beaten if weaker.kind not in over), None)
        if typed and alone is not None:
            base = _written(alone, path, default=None)
        elif value is None and base is None and path in loaded.schema.sections:
            base = {} if any(key.startswith(f"{path}.") for key in loaded.provenance.history) else None
        if origin.kind == OVERRIDE or base != value:
            where, base = redactor.text(origin.where), redactor.value(path, base)
            settings.append(BaseSetting(path, redactor.value(path, value), where, typed, base, known))
    return tuple(settings)


def _written(loaded: "Loaded", path: str, default: Any = MISSING) -> Any:
    """The value at a path: of items of a list the keys that are set, instead of all."""
    key = loaded.schema.keys.get(path)
    read = loaded.get_raw if key is not None and is_list_of_sections(key.kind) else loaded.get
    return read(path, default)


def _without_command_line(loaded: "Loaded", machine: "Machine") -> "Loaded | None":
    """The file alone, where the command line chooses groups: these replace the file's, whose values are not among the
    origins. None if no group is chosen, the file alone is incomplete, or it is a pipe."""
    if not loaded.file.is_file() or not any(
        origin.kind == CHOSEN for origins in loaded.provenance.history.values() for origin in origins
    ):
        return None
    from areal_like.config.load import load

    try:
        return load(loaded.file, (), loaded.schema_name, machine)
    except ConfigError:
        return None


def replaced_file_values(loaded: "Loaded", redactor: Redactor) -> tuple[ReplacedFileValue, ...]:
    """Every value in the body of the user's file that a group chosen on the command line replaced by another."""
    replaced = []
    for path in loaded.provenance.history:
        origin = loaded.origin(path)
        pair = _beaten_by_group([origin, *origin.beaten])
        if pair is not None:
            body, group = pair
            written, value = redactor.value(path, body.value), redactor.value(path, group.value)
            replaced.append(
                ReplacedFileValue(path, written, redactor.text(body.where), value, redactor.text(group.where))
            )
    return tuple(replaced)


def _beaten_by_group(strongest_first: list["Origin"]) -> tuple["Origin", "Origin"] | None:
    body = next((index for index, origin in enumerate(strongest_first) if origin.kind == BODY), None)
    group = next((origin for origin in strongest_first[:body] if origin.kind == CHOSEN), None) if body else None
    if body is None or group is None or group.value == strongest_first[body].value:
        return None
    return strongest_first[body], group


def where_set(loaded: "Loaded", key: str) -> str:
    """Where a key was set; for a section, where the strongest of its keys was set."""
    return _strongest(loaded, key).where if key in loaded.schema.keys or key in loaded.schema.sections else ""


def with_places(loaded: "Loaded", problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Each problem once, with the place that set its key, without secrets."""
    text = loaded.redactor.text
    placed = (replace(one, message=text(one.message), where=text(where_set(loaded, one.key))) for one in problems)
    return tuple(dict.fromkeys(placed))


def is_set_by_user(loaded: "Loaded", key: str) -> bool:
    """Whether the body of the user's file or the command line sets a key."""
    return _strongest(loaded, key).kind in (BODY, CHOSEN, OVERRIDE)


def is_set_by_group(loaded: "Loaded", key: str) -> bool:
    """Whether a group, or a file that the user's builds on, sets a key."""
    from areal_like.config.sources.layers import GROUPS  # brings yaml

    return loaded.origin(key).kind in GROUPS


def _strongest(loaded: "Loaded", key: str) -> "Origin":
    from areal_like.config.sources.layers import LayerKind  # brings yaml

    origin = loaded.origin(key)
    if origin.kind != "default":
        return origin
    below = [loaded.origin(path) for path in loaded.provenance.history if path.startswith(f"{key}.")]
    weakest_first = get_args(LayerKind)
    return max(reversed(below), key=lambda each: weakest_first.index(each.kind), default=origin)
