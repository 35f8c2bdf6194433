"""A YAML file as a tree that knows where every word of it stands.

What it takes away from YAML: duplicate keys (a mistake), tags and merge keys (a mistake), the guesses of
YAML 1.1 at what a bare word means (`on`, `1:30`, `2026-11-30` stay the text that was written). What a
text means is decided by the setting it is given for. Anchors and aliases work.

Knows nothing of settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import yaml

_TAGS: Final = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq", "timestamp", "value")
)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where something was said: in a file with line and column from 1, or a variable's or flag's name alone."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong. setting: its dotted name, "" where it is about none."""

    place: Place
    message: str
    setting: str = ""

    def __str__(self) -> str:
        if self.setting and self.place.line:  # a variable's or flag's name says it already
            return f"{self.place}: {self.setting}: {self.message}"
        return f"{self.place}: {self.message}"


@dataclass(frozen=True, slots=True)
class Text:
    """A single value as it was written, without its quotes."""

    place: Place
    text: str
    quoted: bool = False

    @property
    def null(self) -> bool:
        """Is this what YAML calls null: nothing at all, `~` or `null`?"""
        return not self.quoted and self.text in ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True, slots=True)
class Section:
    """Settings by name; the place of each name comes with it."""

    place: Place
    entries: Mapping[str, tuple[Place, Node]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Several:
    """A list."""

    place: Place
    items: tuple[Node, ...]


Node = Text | Section | Several


def parse(text: str, source: str) -> tuple[Section | None, list[Mistake]]:
    """The tree of one file, None if it is no YAML at all, and what is wrong with it as YAML."""
    start = Place(source, 1, 1)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        return None, [_not_yaml(error, source)]
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        return None, [Mistake(Place(source, line, column), "a character that YAML does not allow")]
    except RecursionError:
        return None, [Mistake(start, "nested too deeply to be read")]
    planter = _Planter(source)
    node = Section(start) if root is None else planter.plant(root)
    if isinstance(node, Text) and node.null:
        node = Section(start)
    if not isinstance(node, Section):
        planter.mistakes.append(
            Mistake(node.place, "the file must hold settings, as in `upstream: http://127.0.0.1:8000`")
        )
        node = Section(start)
    return node, planter.mistakes


def put(tree: Section, path: tuple[str, ...], node: Node) -> Section:
    """The tree with `node` at `path`, whatever stood there. Other trees that share its branches stay as they are."""
    name, *rest = path
    place, old = tree.entries.get(name, (node.place, Section(node.place)))
    if rest:
        node = put(old if isinstance(old, Section) else Section(node.place), tuple(rest), node)
    return replace(tree, entries={**tree.entries, name: (place, node)})


class _Planter:
    """Turns PyYAML's nodes into ours, each once: an alias costs nothing, however often it is used."""

    def __init__(self, source: str) -> None:
        self.mistakes: list[Mistake] = []
        self._source = source
        self._done: dict[int, Node] = {}
        self._open: set[int] = set()

    def plant(self, node: yaml.Node) -> Node:
        place = self._place(node)
        if id(node) in self._open:
            self.mistakes.append(Mistake(place, "this alias stands inside of what it repeats"))
            return Section(place)
        if id(node) not in self._done:
            self._open.add(id(node))
            self._done[id(node)] = self._planted(node, place)
            self._open.discard(id(node))
        return self._done[id(node)]

    def _planted(self, node: yaml.Node, place: Place) -> Node:
        if node.tag not in _TAGS:
            self.mistakes.append(Mistake(place, f"the tag {node.tag} has no meaning here: leave it out"))
        if isinstance(node, yaml.SequenceNode):
            return Several(place, tuple(self.plant(item) for item in node.value))
        if isinstance(node, yaml.MappingNode):
            return Section(place, dict(self._entries(node)))
        assert isinstance(node, yaml.ScalarNode), node
        return Text(place, node.value, quoted=node.style is not None)

    def _entries(self, node: yaml.MappingNode) -> Iterator[tuple[str, tuple[Place, Node]]]:
        seen: dict[str, Place] = {}
        for key, value in node.value:
            place = self._place(key)
            if not isinstance(key, yaml.ScalarNode):
                self.mistakes.append(Mistake(place, "a name must be a single word"))
            elif key.value == "<<" and key.style is None:
                self.mistakes.append(Mistake(place, "YAML 1.2 has no merge key `<<`: write the settings out"))
            elif key.value in seen:
                first = seen[key.value]
                self.mistakes.append(
                    Mistake(place, f"`{key.value}` stands here twice: first at {first.line}:{first.column}")
                )
            else:
                seen[key.value] = place
                yield key.value, (place, self.plant(value))

    def _place(self, node: yaml.Node) -> Place:
        return Place(self._source, node.start_mark.line + 1, node.start_mark.column + 1)


def _not_yaml(error: yaml.MarkedYAMLError, source: str) -> Mistake:
    """What the YAML reader says, without the lines that it quotes: they may hold a secret."""
    mark = error.problem_mark or error.context_mark
    place = Place(source, mark.line + 1, mark.column + 1) if mark else Place(source, 1, 1)
    context, problem = error.context or "", error.problem or "not YAML"
    if "alias" in context + problem:
        return Mistake(place, "a value that begins with * is an alias in YAML: put it in quotes")
    if "document" in problem:
        return Mistake(place, "a second document begins here: the file must be one")
    return Mistake(place, f"not YAML: {context + ', ' if context else ''}{problem}")
