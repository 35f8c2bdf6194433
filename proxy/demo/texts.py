"""Real texts that every machine has: sentences of the standard library's documentation strings."""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_MODULES = (
    "argparse ast bisect calendar cgi codecs collections configparser contextlib copy csv dataclasses datetime "
    "decimal difflib dis doctest email enum fileinput fractions ftplib functools gettext glob gzip heapq html "
    "http imaplib inspect ipaddress json locale logging lzma mailbox mimetypes multiprocessing numbers operator "
    "optparse os pathlib pdb pickle platform poplib pprint profile pydoc queue random re sched selectors shelve "
    "shlex shutil smtplib socket sqlite3 ssl statistics string subprocess tarfile tempfile textwrap threading "
    "timeit tokenize traceback turtle typing unittest urllib uuid warnings wave weakref xml zipfile"
)
_SENTENCE = re.compile(r"[A-Z][^.:\n|`<>{}\\]{18,160}?\.(?=\s|$)")


def sentences(count: int) -> list[str]:
    """Up to `count` different sentences of 4 to 24 words, in a fixed order."""
    found: dict[str, None] = {}
    for text in _documentation():
        for match in _SENTENCE.finditer(" ".join(text.split())):
            if 4 <= len(match[0].split()) <= 24:
                found[match[0]] = None
        if len(found) >= count:
            break
    return list(found)[:count]


def _documentation() -> Iterator[str]:
    library = Path(sysconfig.get_path("stdlib"))
    for name in _MODULES.split():
        package = library / name
        for file in sorted(package.glob("*.py")) if package.is_dir() else [library / f"{name}.py"]:
            if not file.exists():
                continue
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    yield ast.get_docstring(node) or ""
