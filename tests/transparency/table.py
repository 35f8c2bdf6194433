"""The whole table, by what it is about; each row is one promise of transparency."""

from __future__ import annotations

from typing import Final

from tests.transparency import answers, deaths, framing, requests
from tests.transparency.row import Row

TABLE: Final[dict[str, list[Row]]] = {
    "Fields of a request": requests.FIELDS,
    "Methods": requests.METHODS,
    "Targets": requests.TARGETS,
    "What is no request": requests.MALFORMED,
    "Bodies of requests": requests.BODIES,
    "Expect: 100-continue": requests.EXPECT,
    "Requests that could be read in two ways": framing.REQUESTS,
    "Fields of an answer": answers.FIELDS,
    "Statuses, and answers without body": answers.STATUSES,
    "Bodies of answers, streams": answers.BODIES,
    "Interim answers": answers.INTERIM,
    "Answers that could be read in two ways, or not at all": framing.ANSWERS,
    "Clients of HTTP/1.0": answers.OLD_CLIENTS,
    "Backends that die, by phase": deaths.PHASES,
    "Pooled connections": deaths.POOLED,
    "Early answers": deaths.EARLY,
    "Manners of clients": deaths.CLIENTS,
}

LOST: Final = {
    "a method nobody knows goes through": "400, for the parser knows a list of methods",
    "a method in lower case is another method": "400",
    "a target outside ASCII is kept byte for byte": "400; percent-encoded it goes through",
    "a first line with another protocol is refused": "read as HTTP",
    "a client that has sent all and ends writing gets its answer": "taken for one that has left, and given up",
}
"""What Forebay does not keep, and what happens instead; docs/limits.md has each of them."""
