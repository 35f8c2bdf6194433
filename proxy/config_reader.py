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
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from proxy import config_values as values
from proxy.config_tree import Mistake, Node, Place, Section, Several, Text

T = TypeVar("T")

Check = Callable[[str], str]
"""Gives back a text setting as it is kept; a ValueError says what is wrong with it and what to write."""

_NONE: Final = {"slots": "auto"}  # how None is written where it is not `none`
_WRONG: Final = object()


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
        none=_NONE.get(field.name, "none") if none else None,
        several=several,
        default=default,
        doc=said.get("doc", ""),
        minimum=said.get("minimum"),
        per_route=said.get("per_route", True),
    )


def everything(kind: type[Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Setting]]:
    """Every setting under a settings dataclass, sections too, with the names that lead to it; not into lists."""
    for setting in settings_of(kind).values():
        here = (*path, setting.name)
        yield here, setting
        if setting.is_section:
            yield from everything(setting.kind, here)


def leaves(kind: type[Any]) -> Iterator[tuple[tuple[str, ...], Setting]]:
    """Of those the ones that hold a value."""
    return ((path, setting) for path, setting in everything(kind) if not dataclasses.is_dataclass(setting.kind))


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
        self._anywhere = _by_last_name(root)

    def section(self, node: Section, path: str, *, base: T, per_route: bool = False, skip: Collection[str] = ()) -> T:
        """What is written in a section, over `base`.

        per_route: the section belongs to a route, so that settings of the whole process are a mistake.
        skip: names that the caller reads itself.
        """
        kind = type(base)
        known = settings_of(kind)
        found: dict[str, Any] = {}
        for name, (place, value) in node.entries.items():
            where = f"{path}.{name}" if path else name
            if name not in known:
                self.say(place, self._unknown(name, kind), where)
            elif per_route and not known[name].per_route:
                self.say(place, "is the same for all routes: it can only be set at the top", where)
            elif name not in skip:
                old = getattr(base, name)
                found[name] = self._value(kind, known[name], value, where, base=old, per_route=per_route)
        try:
            return dataclasses.replace(base, **found)  # type: ignore[type-var]  # settings are dataclasses, T cannot say so
        except ValueError as error:
            # While one of its settings could not be read, its default stands there and what they say together is moot.
            if not any(f"{path}.{name}" in self.wrong for name in node.entries):
                self.say(node.place, str(error), path)
            return base

    def sections(self, node: Node | None, path: str) -> Iterator[tuple[str, Section]]:
        """The sections of a list with their names; what else stands in it is a mistake."""
        if node is None or (isinstance(node, Text) and node.null):
            return
        if not isinstance(node, Several):
            self.say(node.place, "must be a list: each entry begins with `- `", path)
            return
        for number, item in enumerate(node.items):
            if isinstance(item, Section):
                yield f"{path}[{number}]", item
            else:
                self.say(item.place, "must be a section, as in `- id: name`", f"{path}[{number}]")

    def say(self, place: Place, message: str, path: str) -> None:
        """Note a mistake in the setting at `path`."""
        self.mistakes.append(Mistake(place, message, path))
        self.wrong.add(path)

    def _value(self, kind: type[Any], setting: Setting, node: Node, path: str, *, base: Any, per_route: bool) -> Any:
        """What is written for one setting; after a mistake, `base`."""
        if setting.is_section:
            if isinstance(node, Text) and node.null:
                return base
            if isinstance(node, Section):
                return self.section(node, path, base=base, per_route=per_route)
            self.say(node.place, f"is a section, it holds {', '.join(settings_of(setting.kind))}", path)
            return base
        if isinstance(node, Text) and (node.null or node.text == setting.none):
            if setting.none is not None:
                return None
            self.say(node.place, f"has no value: write a {values.named(setting.kind)}", path)
            return base
        if not setting.several:
            value = self._single(kind, setting, node, path)
            return base if value is _WRONG else value
        if not isinstance(node, Several):
            self.say(node.place, "must be a list, as in [a, b]", path)
            return base
        items = tuple(self._single(kind, setting, item, f"{path}[{at}]") for at, item in enumerate(node.items))
        if _WRONG in items:
            self.wrong.add(path)
            return base
        return items

    def _single(self, kind: type[Any], setting: Setting, node: Node, path: str) -> Any:
        """One value; `_WRONG` after a mistake."""
        if not isinstance(node, Text):
            form = "list" if isinstance(node, Several) else "section"
            self.say(node.place, f"must be a {values.named(setting.kind)}, not a {form}", path)
            return _WRONG
        try:
            value: Any = values.read(setting.kind, node.text)
            if (check := self._checks.get((kind, setting.name))) is not None:
                value = check(value)
        except ValueError as error:
            self.say(node.place, str(error), path)
            return _WRONG
        if setting.minimum is not None and value < setting.minimum:
            least = values.write(setting.kind, setting.kind(setting.minimum))
            self.say(node.place, f"{values.quoted(node.text)} is too small: at least {least}", path)
            return _WRONG
        return value

    def _unknown(self, name: str, kind: type[Any]) -> str:
        """What to write in place of a name that is not known here."""
        known = settings_of(kind)
        if (meant := _by_last_name(kind).get(name) or self._anywhere.get(name)) is not None:
            return f"is not known here; did you mean {'.'.join(meant)}?"
        guess = values.nearest(name.lower().replace("-", "_"), known)
        return f"is not known; did you mean {guess}?" if guess else f"is not known; known here: {', '.join(known)}"


def _by_last_name(kind: type[Any]) -> Mapping[str, tuple[str, ...]]:
    """Where a name is at home; of several places the first."""
    return {path[-1]: path for path, _ in reversed(list(everything(kind)))}
