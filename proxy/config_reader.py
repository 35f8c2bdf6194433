"""Reads a tree into a settings dataclass by its annotations alone; every mistake, not only the first.

Invariants
    Whatever is not taken is a mistake: an unknown name, a value of the wrong kind, a value out of bounds.
    A mistake in one setting hides none in another.
    Without mistakes, what comes back is exactly what was written over `base`, or over the defaults.

Knows nothing of what single settings mean: `checks` does.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

from proxy import config_values as values
from proxy.config_tree import Mistake, Node, Section, Several, Text

T = TypeVar("T")

Check = Callable[[str], str]
"""Gives back a text setting as it is kept; a ValueError says what is wrong with it and what to write."""

NONE: Final = "none"


class Setting(NamedTuple):
    """One field of a settings dataclass, as the reader sees it.

    kind: the annotation without `| None` and `tuple[..., ...]`.
    none: how None is written, where it is a value; else None.
    """

    name: str
    kind: Any
    none: str | None
    several: bool
    default: Any
    doc: str
    minimum: float | None
    per_route: bool

    @property
    def is_section(self) -> bool:
        return dataclasses.is_dataclass(self.kind) and not self.several

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING


@cache
def settings_of(kind: type[Any]) -> Mapping[str, Setting]:
    """The settings that a dataclass declares, in its order."""
    hints = typing.get_type_hints(kind)
    return {field.name: _setting(field, hints[field.name]) for field in dataclasses.fields(kind)}


def _setting(field: dataclasses.Field[Any], annotation: Any) -> Setting:
    none = several = False
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        none = True
        (annotation,) = (option for option in typing.get_args(annotation) if option is not types.NoneType)
    if typing.get_origin(annotation) is tuple:
        several = True
        annotation, _ = typing.get_args(annotation)
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    said = field.metadata
    return Setting(
        name=field.name,
        kind=annotation,
        none=said.get("none", NONE) if none else None,
        several=several,
        default=default,
        doc=said.get("doc", ""),
        minimum=said.get("minimum"),
        per_route=said.get("per_route", True),
    )


def leaves(kind: type[Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Setting]]:
    """Every single value under a settings dataclass with the names that lead to it; lists of sections are left out."""
    for setting in settings_of(kind).values():
        here = (*path, setting.name)
        if setting.is_section:
            yield from leaves(setting.kind, here)
        elif not dataclasses.is_dataclass(setting.kind):
            yield here, setting


class Reader:
    """Reads one configuration.

    root: the settings dataclass of the whole file, for names that stand in the wrong place.
    checks: what a text setting must look like, by its dataclass and name.
    wrong: dotted names of what could not be read; a rule about several settings asks here first.
    """

    def __init__(self, root: type[Any], checks: Mapping[tuple[type[Any], str], Check]) -> None:
        self.mistakes: list[Mistake] = []
        self.wrong: set[str] = set()
        self._checks = checks
        self._elsewhere = {path[-1]: path for path, _ in leaves(root)} | {
            name: (name,) for name in settings_of(root)
        }

    def section(
        self,
        kind: type[T],
        node: Section,
        path: str = "",
        *,
        base: T | None = None,
        per_route: bool = False,
        given: Mapping[str, Any] | None = None,
    ) -> T | None:
        """A settings dataclass; None if a setting without default is missing or wrong.

        base: what applies where nothing is written, if not the defaults.
        per_route: the section belongs to a route, so that settings of the whole process are a mistake.
        given: fields that the caller has read itself.
        """
        known = settings_of(kind)
        found: dict[str, Any] = dict(given or {})
        for name, (place, value) in node.entries.items():
            where = _join(path, name)
            if name not in known:
                self._say(place, self._unknown(name, kind), where)
            elif per_route and not known[name].per_route:
                self._say(place, f"is the same for all routes: set it under `{path.rpartition('.')[2]}` at the top", where)
            elif name not in found:
                found[name] = self._value(kind, known[name], value, where, base, per_route)
        for name, setting in known.items():
            if name not in found:
                found[name] = setting.default if base is None else getattr(base, name)
                if found[name] is dataclasses.MISSING:
                    self._say(node.place, "is missing", _join(path, name))
        if any(value is dataclasses.MISSING for value in found.values()):
            return None
        try:
            return kind(**found)
        except ValueError as error:
            self._say(node.place, str(error), path)
            return None

    def sections(self, node: Node | None, path: str) -> list[Section]:
        """A list of sections; what else stands in it is a mistake."""
        if node is None or (isinstance(node, Text) and node.null):
            return []
        if not isinstance(node, Several):
            self._say(node.place, "must be a list: begin each entry with `- `", path)
            return []
        return [
            item
            for number, item in enumerate(node.items)
            if isinstance(item, Section) or self._say(item.place, "must hold settings", f"{path}[{number}]")
        ]

    def _value(self, kind: type[Any], setting: Setting, node: Node, path: str, base: Any, per_route: bool) -> Any:
        """What is written for one setting; on a mistake the value that applies without it."""
        fallback = setting.default if base is None else getattr(base, setting.name)
        if setting.is_section:
            if isinstance(node, Text) and node.null:
                node = Section(node.place)
            if not isinstance(node, Section):
                names = ", ".join(settings_of(setting.kind))
                self._say(node.place, f"is a section: it holds {names}", path)
                return fallback
            inner = None if fallback is dataclasses.MISSING else fallback
            value = self.section(setting.kind, node, path, base=inner, per_route=per_route)
            return fallback if value is None else value
        if isinstance(node, Text) and (node.null or (node.text == setting.none)):
            if setting.none is not None:
                return None
            self._say(node.place, f"has no value: {self._wanted(setting)} is needed", path)
            return fallback
        if setting.several:
            if not isinstance(node, Several):
                self._say(node.place, "must be a list, as in [a, b]", path)
                return fallback
            items = [self._single(kind, setting, item, f"{path}[{at}]") for at, item in enumerate(node.items)]
            if any(item is dataclasses.MISSING for item in items):
                self.wrong.add(path)
                return fallback
            return tuple(items)
        value = self._single(kind, setting, node, path)
        return fallback if value is dataclasses.MISSING else value

    def _single(self, kind: type[Any], setting: Setting, node: Node, path: str) -> Any:
        """One value; MISSING after a mistake."""
        if not isinstance(node, Text):
            form = "a list" if isinstance(node, Several) else "a section"
            self._say(node.place, f"must be {self._wanted(setting)}, not {form}", path)
            return dataclasses.MISSING
        try:
            value = values.read(setting.kind, node.text)
            check = self._checks.get((kind, setting.name))
            if check is not None:
                value = check(value)
        except ValueError as error:
            self._say(node.place, str(error), path)
            return dataclasses.MISSING
        if setting.minimum is not None and value < setting.minimum:
            least = values.write(setting.kind, setting.kind(setting.minimum))
            self._say(node.place, f"{values.quoted(node.text)} is too small: at least {least}", path)
            return dataclasses.MISSING
        return value

    def _wanted(self, setting: Setting) -> str:
        return values.described(setting.kind).replace("\\|", "or").replace("`", "")

    def _unknown(self, name: str, kind: type[Any]) -> str:
        """What to write in place of a name that is not known here."""
        known = settings_of(kind)
        inside = {path[-1]: path for path, _ in leaves(kind) if len(path) > 1}
        elsewhere = inside.get(name) or self._elsewhere.get(name)
        if elsewhere:
            return f"is not known here; did you mean {'.'.join(elsewhere)}?"
        guess = values.nearest(name.lower().replace("-", "_"), known)
        return f"is not known; did you mean {guess}?" if guess else f"is not known; known here: {', '.join(known)}"

    def _say(self, place: Any, message: str, path: str) -> None:
        self.mistakes.append(Mistake(place, message, path))
        self.wrong.add(path)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
