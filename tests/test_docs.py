"""Promises of what is written for people: its links lead somewhere, and its examples are taken as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from proxy.config import load

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def prose(page: Path) -> str:
    """A page without its examples."""
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Where a link may lead to within a page, as GitHub names it."""
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(prose(page)))
    return {text.strip().replace(" ", "-") for text in words}


def examples() -> Iterator[tuple[str, str]]:
    """Every piece of configuration that a page shows, with its place."""
    for page in PAGES:
        found = [text for kind, text in _FENCED.findall(page.read_text(encoding="utf-8")) if kind == "yaml"]
        yield from ((f"{page.relative_to(ROOT)}[{at}]", text) for at, text in enumerate(found))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    """A link to a file, or to a heading of one, finds it."""
    for link in _LINK.findall(prose(page)):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in examples()])
def test_every_example_is_without_mistakes(tmp_path: Path, text: str) -> None:
    """What a page shows as configuration can be copied into a file."""
    file = tmp_path / "forebay.yaml"
    file.write_text(text, encoding="utf-8")
    load(file, {}, {}, upstream_required=False)
