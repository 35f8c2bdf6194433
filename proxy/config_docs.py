"""docs/config.md and config/default.yaml, made from the settings tree: they cannot drift from the code.

`python -m proxy.config_docs` writes both below the current directory; a test fails where they differ.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from proxy import config_values as values
from proxy.config import Settings, variable
from proxy.config_reader import Setting, settings_of
from proxy.routing import RouteSettings
from proxy.settings import Bytes, Seconds

REFERENCE: Final = Path("docs/config.md")
DEFAULTS: Final = Path("config/default.yaml")
TARGET: Final = "http://127.0.0.1:8000"

_INTRODUCTION: Final = """\
# Configuration

<!-- Made by `make docs` from the settings in the code. Change them there. -->

Forebay needs one thing: where the model server is. Everything else has a default.

    forebay serve --upstream http://127.0.0.1:8000

The same setting can be said in three places; the last one counts:

1. a YAML file, `forebay serve --config forebay.yaml`,
2. a variable, `FOREBAY_BATCH__MAX_DELAY=5ms`: `FOREBAY_`, then the names with `__` between them; lists with commas; an
   empty variable says nothing; those that Kubernetes makes for a Service called `forebay` are ignored,
3. a flag of `forebay serve`: `--listen`, `--admin`, `--upstream`, `--redis`, `--max-delay`, `--max-size`.

`forebay check FILE` names every mistake in a file, with its line and what to write instead, and exits with 2; without
mistakes it says what would be served and exits with 0. It reads the variables too, as `forebay serve` would.

## How values are written

| kind | written | not |
|---|---|---|
| duration | `500us`, `5ms`, `1.5s`, `2m`, `1h`, `7d` | a bare number |
| size | `512B`, `64KiB`, `256MiB`, `2GiB`, `1TiB` | a bare number, `256MB` |
| whole number | `32` | `032`, `0x20`, `1_000` |
| word | one of those listed | `true` and `false`: `on` and `off` are words here |
| text | as it is; in quotes where YAML would read it otherwise (`"*"`) | |
| nothing | `none` (or `auto`), where the table says so | |
| list | `[8, 16]`; in a variable `8,16` | |

A name that is not known, a name that stands twice, a value out of bounds: each is a mistake, and nothing starts.
"""

_ROUTES: Final = """\
## `routes`

A list. A request belongs to the first route whose `match` fits; one that fits none belongs to the route `default`,
which has the settings at the top. `cache` and `batch` of a route hold only what differs from those at the top; settings
marked *whole process* cannot differ.

In `match`, `*` stands for any text, `/` included; everything else is itself. A path is matched without its query and
with its percent-encoding undone, so that a route cannot be slipped past by writing its path in another way.
"""

_EXAMPLE: Final = """\
# Requests to treat apart; the first route that fits wins, and what fits none has the settings above.
# routes:
#   - id: rerank                          # the `route` label of every metric
#     match: {path: /v2/models/rerank*}   # also model: rerank*
#     model: {revision: "2026-11-30"}     # change it when the weights change and the backend cannot tell
#     batch: {max_delay: 2ms}
#     cache: {ttl: 10m}
#   - id: private
#     match: {path: /v2/models/private*}
#     mode: off                           # only pass through
"""


def reference() -> str:
    """docs/config.md."""
    parts = [_INTRODUCTION, "## At the top\n", _table(Settings, ())]
    for path, kind in _sections(Settings, ()):
        parts += [f"## `{'.'.join(path)}`\n", _table(kind, path)]
    parts += [_ROUTES, _table(RouteSettings, None)]
    for path, kind in _sections(RouteSettings, ()):
        if path[0] not in settings_of(Settings):
            parts += [f"### `{'.'.join(path)}` of a route\n", _table(kind, None)]
    return "\n".join(parts)


def _sections(kind: type[Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], type[Any]]]:
    for setting in settings_of(kind).values():
        if setting.is_section:
            here = (*path, setting.name)
            yield here, setting.kind
            yield from _sections(setting.kind, here)


def _table(kind: type[Any], path: tuple[str, ...] | None) -> str:
    """The settings of one section. path: where it stands, None in a route, where no variable reaches."""
    rows = (
        f"| `{setting.name}` | {_written(setting)} | {_default(setting)} | {_meaning(setting, path)} |\n"
        for setting in settings_of(kind).values()
    )
    return f"| setting | written | default | meaning |\n|---|---|---|---|\n{''.join(rows)}"


def _written(setting: Setting) -> str:
    if is_dataclass(setting.kind):
        return "list" if setting.several else "section"
    if isinstance(setting.kind, type) and issubclass(setting.kind, Enum):
        form = " \\| ".join(f"`{member.value}`" for member in setting.kind)
    else:
        form = values.named(setting.kind)
    if setting.several:
        form = f"list of {form}s"
    if setting.minimum:
        form += f", at least {values.write(setting.kind, setting.kind(setting.minimum))}"
    return form if setting.none is None else f"{form} \\| `{setting.none}`"


def _default(setting: Setting) -> str:
    if setting.default is MISSING or setting.name == "targets":
        return "must be given"
    if is_dataclass(setting.kind) or setting.default == "":
        return ""
    return f"`{_value(setting)}`"


def _value(setting: Setting) -> str:
    """The default as it is written in the file."""
    if setting.default is None:
        return str(setting.none)
    if setting.several:
        return f"[{', '.join(values.write(setting.kind, item) for item in setting.default)}]"
    text = values.write(setting.kind, setting.default)
    return text if setting.kind in (Seconds, Bytes, int, float, bool) or text.isidentifier() else text or '""'


def _meaning(setting: Setting, path: tuple[str, ...] | None) -> str:
    notes = [setting.doc]
    if path and not setting.per_route and path[0] in settings_of(RouteSettings):
        notes.append("*Whole process.*")
    if path is not None and not is_dataclass(setting.kind):
        notes.append(f"`{variable((*path, setting.name))}`")
    return " ".join(notes)


def defaults() -> str:
    """config/default.yaml: every setting at its default, with what it means."""
    head = (
        "# Every setting of Forebay at its default. Only the upstream must be given; the rest may go.\n"
        "# Made by `make docs`. `forebay check FILE` names every mistake in a file; docs/config.md explains.\n"
    )
    return "\n".join([head, *_yaml(Settings, 0), _EXAMPLE])


def _yaml(kind: type[Any], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for setting in settings_of(kind).values():
        if setting.several and is_dataclass(setting.kind):
            continue  # the example at the end
        for line in textwrap.wrap(setting.doc, 100):
            yield f"{indent}# {line}"
        if setting.is_section:
            yield f"{indent}{setting.name}:"
            yield from _yaml(setting.kind, depth + 1)
        else:
            value = f"[{TARGET}]" if setting.name == "targets" else _value(setting)
            yield f"{indent}{setting.name}: {value}"
        if depth == 0:
            yield ""


def main() -> int:
    for path, text in ((REFERENCE, reference()), (DEFAULTS, defaults())):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
