"""Rows: backends that die, come back, answer early or out of turn; clients with manners of their own."""

from __future__ import annotations

from typing import Final

from tests.transparency.row import (
    ANSWER,
    CLOSE,
    END,
    ERROR,
    GONE,
    HALF_CLOSE,
    OK,
    RESET,
    RESTART,
    TRUNCATED,
    WHOLE,
    Act,
    Answers,
    Do,
    Hanging,
    Let,
    Raw,
    Row,
    Slowly,
    Step,
    Wait,
    answer,
    asked,
    backend,
    client,
    connections,
    either,
    ended,
    get,
    never,
    post,
    request,
    row,
    status,
    unsaid,
)

_LENGTH: Final = b"Content-Length: 10"
_CHUNKED: Final = b"Transfer-Encoding: chunked"
_SAYS: Final = {CLOSE: "closes", RESET: "resets"}

_BEFORE: Final[dict[str, tuple[Step, ...]]] = {
    "before it has read the body": (),
    "before its answer": (WHOLE,),
    "within the first line of its answer": (WHOLE, b"HTTP/1.1 20"),
    "within the head of its answer": (WHOLE, b"HTTP/1.1 200 OK\r\nX-A: s3cr3t\r\n"),
}
_WITHIN: Final[dict[str, tuple[Step, ...]]] = {
    "before the body of its answer": (WHOLE, answer(_LENGTH)),
    "within a body of known length": (WHOLE, answer(_LENGTH, body=b"half.")),
    "before the first chunk": (WHOLE, answer(_CHUNKED)),
    "within a chunk": (WHOLE, answer(_CHUNKED, body=b"5\r\nha")),
    "between two chunks": (WHOLE, answer(_CHUNKED, body=b"5\r\nhalf.\r\n")),
    "before the end of the last chunk": (WHOLE, answer(_CHUNKED, body=b"5\r\nhalf.\r\n0\r\n")),
}


def _before(how: Do, phase: str, steps: tuple[Step, ...]) -> Row:
    return row(
        f"a backend that {_SAYS[how]} {phase} is a 5xx, and the client's connection goes on",
        (post(b"abc"), ANSWER, get(b"/next"), Answers(2)),
        status(ERROR, 200),
        unsaid(b"s3cr3t"),
        asked(2 if WHOLE in steps else 1),
        backend=((*steps, how), OK),
    )


def _within(how: Do, phase: str, steps: tuple[Step, ...]) -> Row:
    return row(
        f"a backend that {_SAYS[how]} {phase} is seen to have broken off",
        (get(), END),
        TRUNCATED,
        backend=((*steps, how),),
    )


PHASES = (
    [_before(how, phase, steps) for phase, steps in _BEFORE.items() for how in (CLOSE, RESET)]
    + [_within(how, phase, steps) for phase, steps in _WITHIN.items() for how in (CLOSE, RESET)]
    + [
        row(
            "a backend that resets a body which only its end would end is seen to have broken off",
            (get(), Raw(b"half."), Let("reset"), END),
            TRUNCATED,
            backend=((WHOLE, answer(b"X-A: 1", body=b"half."), Wait("reset"), RESET),),
        ),
        row("no backend is a 5xx at once", (get(), ANSWER), status(ERROR), absent=True),
    ]
)


def _race(method: bytes, how: Do, *, retried: bool) -> Row:
    """The second request meets a pooled connection that dies under it, without a byte of an answer."""
    body = b"abc" if method in (b"POST", b"PATCH", b"PUT") else b""
    again = request(method + b" /second HTTP/1.1", b"Content-Length: %d" % len(body), body=body)
    name = method.decode()
    if retried:
        return row(
            f"{name} survives a pooled connection that the backend {_SAYS[how]}",
            (get(), ANSWER, again, Answers(2)),
            status(200, 200),
            backend=[OK, (WHOLE, how), OK],
        )
    return row(
        f"{name} on a pooled connection that the backend {_SAYS[how]} is not made twice",
        (get(), ANSWER, again, Answers(2)),
        either((status(200, ERROR),), (status(200), ended("closed", "reset"))),
        asked(2),
        backend=[OK, (WHOLE, how), OK],
    )


_STRAY: Final = answer(b"Content-Length: 6", b"Connection: close", line=b"HTTP/1.1 408 Request Timeout", body=b"stray!")

POOLED = (
    [_race(method, how, retried=True) for method in (b"GET", b"HEAD", b"OPTIONS") for how in (CLOSE, RESET)]
    + [_race(method, how, retried=False) for method in (b"POST", b"PATCH") for how in (CLOSE, RESET)]
    + [
        row(
            "requests of one client find each other's connections",
            (*(step for n in range(1, 9) for step in (get(), Answers(n))),),
            status(*[200] * 8),
            connections(3),
        ),
        row(
            "what a backend says on an idle connection is nobody's answer",
            (get(), ANSWER, Let("stray"), Wait("said"), post(b"abc"), Answers(2)),
            status(200, 200),
            client.body(b"ok", nth=1),
            unsaid(b"stray"),
            backend=[(WHOLE, OK, Wait("stray"), _STRAY, Let("said"), GONE), OK],
        ),
        row(
            "a POST does not fail because the backend has closed an idle connection",
            (get(), ANSWER, Let("close"), Wait("closed"), post(b"abc"), Answers(2)),
            status(200, 200),
            asked(2),
            backend=[(WHOLE, OK, Wait("close"), HALF_CLOSE, Let("closed"), GONE), OK],
        ),
        row(
            "a backend that was restarted is found again, by a POST too",
            (post(b"a"), ANSWER, RESTART, post(b"b"), Answers(2)),
            status(200, 200),
            asked(2),
        ),
    ]
)

_BIG: Final = 8 * 2**20
_HEAD: Final = request(b"POST / HTTP/1.1", b"Content-Length: %d" % _BIG)
_TOO_LARGE: Final = answer(b"Content-Length: 3", line=b"HTTP/1.1 413 Too Large", body=b"big")


def _early(promise: str, *then: Step, upload: tuple[Step, ...] = (_HEAD + b"u" * _BIG, ANSWER)) -> Row:
    act: Act = (_TOO_LARGE, *then)
    return row(promise, upload, status(413), client.body(b"big"), asked(0), backend=(act,))


EARLY = [
    _early("an early answer to a large upload arrives while the backend reads on", GONE),
    _early("an early answer to a large upload arrives when the backend closes", CLOSE),
    _early(
        "an early answer arrives while the client has not sent the rest",
        GONE,
        upload=(_HEAD + b"u" * 1000, ANSWER),
    ),
    row(
        "an answer may begin beside its upload, and both go on",
        (_HEAD[:-4].replace(b"%d" % _BIG, b"6") + b"\r\n\r\n", b"abc", Raw(b"ABC"), b"def", ANSWER),
        status(200),
        client.body(b"ABCDEF"),
        backend=((answer(b"Content-Length: 6"), b"ABC", WHOLE, b"DEF"),),
    ),
    row(
        "what follows an upload that was answered early is not read as part of it, nor out of turn",
        (_HEAD + b"u" * _BIG + get(b"/next"), ANSWER),
        either((status(413),), (status(413, 200), backend.line(b"GET /next HTTP/1.1", nth=1))),
        backend=[(_TOO_LARGE, GONE), OK],
    ),
]

_SLOW: Final = get(b"/", b"X-A: 1")

CLIENTS = [
    row("a head sent byte by byte is read", (Slowly(_SLOW), ANSWER), status(200), backend.has(b"X-A: 1")),
    row("an empty line before a request is passed over", (b"\r\n" + get(), ANSWER), status(200), asked(1)),
    row(
        "requests sent at once are answered in order",
        (get(b"/1") + get(b"/2") + post(b"abc", target=b"/3") + get(b"/4"), Answers(4)),
        status(200, 201, 202, 203),
        asked(4),
        backend=[answer(b"Content-Length: 0", line=b"HTTP/1.1 20%d OK" % n) for n in range(4)],
    ),
    row(
        "a HEAD among requests sent at once shifts no answer",
        (get(method=b"HEAD") + get(b"/2"), Answers(2)),
        status(200, 201),
        client.body(b"two", nth=1),
        backend=[answer(b"Content-Length: 9"), answer(b"Content-Length: 3", line=b"HTTP/1.1 201 OK", body=b"two")],
    ),
    row(
        "a request behind Connection: close is not served",
        (get(b"/", b"Connection: close") + get(b"/behind"), END),
        status(200),
        never(b"behind"),
        ended("closed"),
    ),
    row(
        "a request before garbage gets its answer",
        (get(b"/first") + b"nonsense\r\n\r\n", END),
        client.body(b"ok"),
        asked(1),
    ),
    row(
        "requests before garbage get their answers, with bodies too",
        (get(b"/1") + post(b"abc", target=b"/2") + post(b"def", target=b"/3") + b"nonsense\r\n\r\n", END),
        client.body(b"ok", nth=2),
        backend.body(b"def", nth=2),
        asked(3),
    ),
    row(
        "a client that has sent all and ends writing gets its answer",
        (get(), HALF_CLOSE, ANSWER),
        status(200),
        client.body(b"ok"),
    ),
    row(
        "a client that ends writing within its upload sends no whole request",
        (request(b"POST / HTTP/1.1", b"Content-Length: 10", body=b"half."), HALF_CLOSE, END),
        asked(0),
    ),
    row(
        "a client that ends writing within a chunk sends no whole request",
        (request(b"POST / HTTP/1.1", _CHUNKED, body=b"5\r\nha"), HALF_CLOSE, END),
        asked(0),
    ),
    row(
        "300 requests that the backend leaves hanging hold up nobody",
        (Hanging(300), get(b"/live"), ANSWER, post(b"abc"), Answers(2)),
        status(200, 200),
    ),
]
