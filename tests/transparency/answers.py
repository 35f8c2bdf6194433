"""Rows: answers on their way from the backend to the client, and clients of HTTP/1.0."""

from __future__ import annotations

from typing import Final

from tests.transparency.row import (
    ANSWER,
    CLOSE,
    END,
    WHOLE,
    Answers,
    Interim,
    Let,
    Raw,
    Row,
    Step,
    Wait,
    answer,
    asked,
    backend,
    client,
    either,
    ended,
    get,
    interim,
    request,
    row,
    status,
)

_TWO: Final = b"Content-Length: 2"
_CHUNKED: Final = b"Transfer-Encoding: chunked"
_BYTES: Final = bytes(range(256)) * 16


def _spelt(promise: str, *lines: bytes) -> Row:
    """The client sees these field lines letter by letter."""
    return row(promise, get(), status(200), client.spelt(*lines), backend=answer(*lines, _TWO, body=b"ok"))


def _same(promise: str, *lines: bytes) -> Row:
    """The client sees these fields as they were sent, but perhaps for the case of their names."""
    return row(promise, get(), status(200), client.has(*lines), backend=answer(*lines, _TWO, body=b"ok"))


FIELDS = [
    _spelt("an answer's field names keep their case", b"X-MiXeD-case: 1"),
    _same("an answer's fields of one name stay apart and in order", b"X-A: 1", b"X-A: 2", b"X-A: 1"),
    _spelt("two Set-Cookie lines stay two, as they are spelt", b"Set-Cookie: a=1", b"set-cookie: b=2"),
    _same("the order of an answer's fields is kept", b"B: 1", b"A: 2", b"C: 3", b"A: 4"),
    _same("a latin-1 value of an answer goes through", b"X-A: caf\xe9"),
    _same("an empty value of an answer goes through", b"X-A: "),
    _same("a value of 30 KiB in an answer goes through", b"X-A: " + b"v" * 30 * 1024),
    _same("150 fields of an answer go through", *(b"X-%d: %d" % (n, n) for n in range(150))),
    _same("an underscore in an answer's field name goes through", b"X_Under: 1"),
    _same("Server and Date are the backend's own", b"Server: mine/1", b"Date: Thu, 01 Jan 1970 00:00:00 GMT"),
    _same("what other proxies take as orders goes through", b"X-Accel-Redirect: /a", b"X-Accel-Buffering: yes"),
    _same("cookies, locations and refreshes are not rewritten", b"Location: http://other:1/a", b"Refresh: 1; url=/a"),
    _same("a coded answer keeps its coding", b"Content-Encoding: gzip", b"Vary: Accept-Encoding", b'ETag: W/"1"'),
    _same("fields of caches go through", b"Cache-Control: no-store", b"Age: 7", b"Expires: 0", b"Pragma: no-cache"),
    row(
        "nothing is added to an answer",
        get(),
        status(200),
        client.only(b"X-A: 1"),
        backend=answer(b"X-A: 1", _TWO, body=b"ok"),
    ),
    row(
        "hop-by-hop fields of an answer end here",
        get(),
        status(200),
        client.lacks(b"keep-alive", b"proxy-connection", b"x-mine"),
        client.has(b"X-End: 1"),
        backend=answer(b"Keep-Alive: timeout=5", b"X-Mine: 1", b"Connection: x-mine", b"X-End: 1", _TWO, body=b"ok"),
    ),
    row(
        "the backend's Connection: close does not close the client's connection",
        (get(), ANSWER, get(b"/next"), Answers(2)),
        status(200, 200),
        backend=((WHOLE, answer(b"Connection: close", _TWO, body=b"ok"), CLOSE),),
    ),
]

_LINES: Final = (
    b"200 Fine, Thanks",
    b"201 Created",
    b"203 Non-Authoritative Information",
    b"207 Multi-Status",
    b"299 Odd",
    b"301 Moved",
    b"302 Found",
    b"307 Temporary Redirect",
    b"400 Bad Request",
    b"401 Unauthorized",
    b"404 No Such Model Here",
    b"408 Request Timeout",
    b"413 Too Large",
    b"418 I'm a caf\xe9",
    b"429 Too Many Requests",
    b"499 Own",
    b"500 Internal Server Error",
    b"502 Bad Gateway",
    b"503 Service Unavailable",
    b"504 Gateway Timeout",
    b"599 Whatever",
    b"600 Beyond",
    b"999 Far Beyond",
)

STATUSES = [
    row(
        f"{line.decode('latin-1')} goes through, with its body",
        get(),
        client.line(b"HTTP/1.1 " + line),
        client.body(b"ok"),
        asked(1),
        backend=answer(_TWO, b"Location: /elsewhere", b"WWW-Authenticate: Basic", line=b"HTTP/1.1 " + line, body=b"ok"),
    )
    for line in _LINES
] + [
    row(
        "an empty reason stays empty",
        get(),
        either((client.line(b"HTTP/1.1 404 "),), (client.line(b"HTTP/1.1 404"),)),
        backend=answer(b"Content-Length: 0", line=b"HTTP/1.1 404 "),
    ),
    row(
        "204 has no body, and the connection goes on",
        (get(), ANSWER, get(b"/next"), Answers(2)),
        status(204, 200),
        client.has(b"X-A: 1"),
        client.lacks(b"content-length", b"transfer-encoding"),
        backend=[answer(b"X-A: 1", line=b"HTTP/1.1 204 No Content"), answer(_TWO, body=b"ok")],
    ),
    row(
        "304 keeps its length and has no body, and the connection goes on",
        (get(), ANSWER, get(b"/next"), Answers(2)),
        status(304, 200),
        client.has(b'ETag: "e"'),
        client.value(b"content-length", b"9"),
        backend=[
            answer(b'ETag: "e"', b"Content-Length: 9", line=b"HTTP/1.1 304 Not Modified"),
            answer(_TWO, body=b"ok"),
        ],
    ),
    row(
        "the answer to HEAD keeps its length, and the connection goes on",
        (get(method=b"HEAD"), ANSWER, get(b"/next"), Answers(2)),
        status(200, 200),
        client.value(b"content-length", b"12345"),
        backend=[answer(b"Content-Length: 12345"), answer(_TWO, body=b"ok")],
    ),
    row(
        "the answer to HEAD of a chunked resource has no body, and the connection goes on",
        (get(method=b"HEAD"), ANSWER, get(b"/next"), Answers(2)),
        status(200, 200),
        client.lacks(b"content-length"),
        backend=[answer(_CHUNKED), answer(_TWO, body=b"ok")],
    ),
]


def _stream(promise: str, field: bytes, first: bytes, second: bytes, end: Step) -> Row:
    """The first piece is with the client before the backend sends the second."""
    return row(
        promise,
        (get(), Raw(b"one"), Let("go on"), ANSWER),
        status(200),
        client.body(b"onetwo"),
        backend=((WHOLE, answer(field), first, Wait("go on"), second, end),),
    )


BODIES = [
    row(
        "an answer's body arrives byte for byte",
        get(),
        client.body(_BYTES),
        client.value(b"content-length", b"4096"),
        backend=answer(b"Content-Length: 4096", body=_BYTES),
    ),
    row(
        "an answer of 8 MiB arrives",
        get(),
        client.body(b"\xa5" * 2**23),
        backend=answer(b"Content-Length: %d" % 2**23, body=b"\xa5" * 2**23),
    ),
    row(
        "an empty answer keeps its length",
        get(),
        client.value(b"content-length", b"0"),
        backend=answer(b"Content-Length: 0"),
    ),
    row(
        "a chunked answer arrives",
        get(),
        client.body(b"ok"),
        backend=answer(_CHUNKED, body=b"1\r\no\r\n1\r\nk\r\n0\r\n\r\n"),
    ),
    row(
        "an answer that its connection ends arrives, with an end that is seen",
        get(),
        client.body(b"ok"),
        backend=((WHOLE, answer(b"X-A: 1", body=b"ok"), CLOSE),),
    ),
    row(
        "an answer of HTTP/1.0 arrives",
        (get(), ANSWER, get(b"/next"), Answers(2)),
        status(200, 200),
        client.body(b"ok"),
        backend=((WHOLE, answer(_TWO, line=b"HTTP/1.0 200 OK", body=b"ok"), CLOSE),),
    ),
    row(
        "trailers and extensions of an answer do no harm",
        (get(), ANSWER, get(b"/next"), Answers(2)),
        status(200, 200),
        client.body(b"ok"),
        backend=answer(_CHUNKED, body=b"2;a=b\r\nok\r\n0;c\r\nX-T: t\r\n\r\n"),
    ),
    _stream("a chunked stream is not held back", _CHUNKED, b"3\r\none\r\n", b"3\r\ntwo\r\n", b"0\r\n\r\n"),
    _stream("a stream of known length is not held back", b"Content-Length: 6", b"one", b"two", b""),
    _stream("a stream that its connection ends is not held back", b"X-A: 1", b"one", b"two", CLOSE),
    row(
        "a head arrives before there is a body",
        (get(), Raw(b"X-Head: here"), Let("go on"), ANSWER),
        client.body(b"ok"),
        backend=((WHOLE, answer(b"X-Head: here", _TWO), Wait("go on"), b"ok"),),
    ),
]

_HINTS: Final = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
_FINAL: Final = answer(_TWO, body=b"ok")

INTERIM = [
    row("103 Early Hints reach the client", (get(), ANSWER), status(200), interim(103), backend=_HINTS + _FINAL),
    row(
        "103 Early Hints reach the client before the answer exists",
        (get(), Interim(), Let("go on"), ANSWER),
        interim(103),
        client.body(b"ok"),
        backend=((WHOLE, _HINTS, Wait("go on"), _FINAL),),
    ),
    row(
        "an answer behind two interim ones is the answer, and the connection goes on",
        (get(), ANSWER, get(b"/next"), Answers(2)),
        status(200, 200),
        client.body(b"ok"),
        client.body(b"ok", nth=1),
        backend=_HINTS + _HINTS + _FINAL,
    ),
    row(
        "100 Continue that nobody waits for is not taken for the answer",
        (get(), ANSWER, get(b"/next"), Answers(2)),
        status(200, 200),
        client.body(b"ok"),
        backend=b"HTTP/1.1 100 Continue\r\n\r\n" + _FINAL,
    ),
]


def _old(*fields: bytes, method: bytes = b"GET") -> bytes:
    return request(method + b" / HTTP/1.0", *fields)


OLD_CLIENTS = [
    row(
        "HTTP/1.0 is answered, and its connection ends", (_old(), END), status(200), client.body(b"ok"), ended("closed")
    ),
    row(
        "HTTP/1.0 gets no chunks",
        (_old(), END),
        client.body(b"ok"),
        client.lacks(b"transfer-encoding"),
        ended("closed"),
        backend=answer(_CHUNKED, body=b"2\r\nok\r\n0\r\n\r\n"),
    ),
    row(
        "HTTP/1.0 may keep its connection",
        (_old(b"Connection: keep-alive"), ANSWER, _old(b"Connection: keep-alive"), Answers(2)),
        status(200, 200),
        client.value(b"connection", b"keep-alive", b"Keep-Alive"),
    ),
    row(
        "HTTP/1.0 that keeps its connection gets no chunks either",
        (_old(b"Connection: keep-alive"), END),
        client.body(b"ok"),
        client.lacks(b"transfer-encoding"),
        ended("closed"),
        backend=answer(_CHUNKED, body=b"2\r\nok\r\n0\r\n\r\n"),
    ),
    row("HTTP/1.0 gets no interim answer", (_old(), END), status(200), interim(), backend=_HINTS + _FINAL),
    row(
        "HTTP/1.0 that expects 100 Continue is not told it",
        (request(b"POST / HTTP/1.0", b"Content-Length: 3", b"Expect: 100-continue", body=b"abc"), END),
        status(200),
        interim(),
        backend.body(b"abc"),
    ),
    row(
        "HTTP/1.0 needs no Host",
        (b"GET / HTTP/1.0\r\n\r\n", END),
        status(200),
        asked(1),
    ),
    row(
        "HTTP/1.0 may post a body",
        (request(b"POST / HTTP/1.0", b"Content-Length: 3", body=b"abc"), END),
        status(200),
        backend.body(b"abc"),
    ),
]
