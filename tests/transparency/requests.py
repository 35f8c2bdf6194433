"""Rows: the head and the body of a request, from the client to the backend."""

from __future__ import annotations

from typing import Final

from tests.transparency.row import (
    ANSWER,
    CONTINUE,
    END,
    OK,
    REFUSED,
    WHOLE,
    Answers,
    Interim,
    Row,
    Slowly,
    asked,
    backend,
    chunks,
    client,
    either,
    get,
    interim,
    never,
    post,
    request,
    row,
    status,
    unsaid,
)

MIB: Final = 2**20
_BYTES: Final = bytes(range(256)) * 16
_HOP: Final = (
    b"Keep-Alive: timeout=5",
    b"Proxy-Connection: keep-alive",
    b"TE: trailers",
    b"Upgrade: h2c",
)


def _spelt(promise: str, *lines: bytes) -> Row:
    """The backend sees these field lines letter by letter."""
    return row(promise, get(b"/", *lines), status(200), backend.spelt(*lines))


def _same(promise: str, *lines: bytes) -> Row:
    """The backend sees these fields as they were sent, but perhaps for the case of their names."""
    return row(promise, get(b"/", *lines), status(200), backend.has(*lines))


FIELDS = [
    _spelt("the case of a field name is kept", b"X-MiXeD-case: 1"),
    _same("fields of one name stay apart and in order", b"X-A: 1", b"X-A: 2", b"X-A: 1"),
    _spelt("names that differ in case stay apart and as they are", b"x-trace: 1", b"X-TRACE: 2", b"X-Trace: 3"),
    _same("the order of fields is kept", b"B: 1", b"A: 2", b"C: 3", b"A: 4"),
    _same("two Cookie lines stay two", b"Cookie: a=1", b"Cookie: b=2"),
    _same("a latin-1 value goes through", b"X-A: caf\xe9"),
    _same("a UTF-8 value goes through", b"X-A: na\xc3\xafve \xe2\x82\xac"),
    _same("an empty value goes through", b"X-A: "),
    _same("a value of 30 KiB goes through", b"X-A: " + b"v" * 30 * 1024),
    _same("a name of 500 bytes goes through", b"X-" + b"n" * 498 + b": 1"),
    _same("150 fields go through", *(b"X-%d: %d" % (n, n) for n in range(150))),
    _same("an underscore in a name goes through", b"X_Under_Score: 1"),
    _same("every character of a token may stand in a name", b"X!#$%&'*+-.^_`|~9: 1"),
    _same("a tab within a value is kept", b"X-A: a\tb"),
    _same("white space within a value is kept", b"X-A: a   b ,  c"),
    _same("quotes, commas and backslashes in a value are kept", b'X-A: "a\\"b, c", d;e=f'),
    _same("a caller's credentials reach the backend", b"Authorization: Bearer secret"),
    _same("what a caller says of forwarding is not rewritten", b"X-Forwarded-For: 10.0.0.1", b"Via: 1.0 other"),
    _same("Accept-Encoding is the caller's own", b"Accept-Encoding: gzip;q=0.5, br"),
    _same("conditions and ranges reach the backend", b'If-None-Match: "e"', b"Range: bytes=0-1", b"If-Range: e"),
    row("nothing is added to a plain request", get(), status(200), backend.only()),
    row("nothing is added to a request with a body", post(b"abc"), status(200), backend.only(), backend.body(b"abc")),
    row(
        "white space around a value is no part of it",
        get(b"/", b"X-A:   v  \t"),
        status(200),
        backend.value(b"x-a", b"v"),
    ),
    row(
        "hop-by-hop fields end here",
        get(b"/", *_HOP, b"X-A: 1"),
        status(200),
        backend.lacks(b"keep-alive", b"proxy-connection", b"upgrade"),
        backend.has(b"X-A: 1"),
    ),
    row(
        "what Connection lists ends here, the rest does not",
        get(b"/", b"X-Mine: 1", b"X-End: 2", b"Connection: x-mine, keep-alive"),
        status(200),
        backend.lacks(b"x-mine"),
        backend.has(b"X-End: 2"),
    ),
    row(
        "two Connection fields count both",
        get(b"/", b"A: 1", b"Connection: a", b"B: 2", b"Connection: B", b"C: 3"),
        status(200),
        backend.lacks(b"a", b"b"),
        backend.has(b"C: 3"),
    ),
    row(
        "Connection cannot take away what frames the body",
        post(b"abc", b"Connection: content-length"),
        status(200),
        backend.body(b"abc"),
    ),
    row("a Connection field of nonsense harms nobody", get(b"/", b"Connection: ,;, close x,"), status(200), asked(1)),
    row(
        "two different Host fields are refused",
        get(b"/", b"Host: other"),
        *REFUSED,
    ),
]

_TARGETS: Final = {
    "double slashes": b"//double//slash",
    "dots": b"/a/./b/../c/..",
    "an encoded slash": b"/a%2Fb",
    "encoded dots": b"/%2e%2e/a",
    "a bare question mark": b"/a?",
    "a second question mark": b"/a?b=1?c=2",
    "repeated and empty parameters": b"/a?b=1&b=1&&=&x",
    "broken percent-encoding": b"/a%zz?%",
    "a plus and encoded white space": b"/a+b%20c?d=+%20",
    "colons, at signs and semicolons": b"/v1/models/m:predict;v=1,2@3",
    "encoded text in either case": b"/caf%C3%A9/%e2%82%ac",
    "brackets, pipes and quotes": b"/[1]|{2}^`\"<>\\~'()*!$",
    "an encoded NUL": b"/a%00b",
    "an encoded line break": b"/a%0d%0aX-A:%201",
    "16 KiB": b"/" + b"long" * 4096,
    "no path but a query": b"/?a",
    "a whole address in the query": b"/?u=http://elsewhere/a",
    "a whole address in the path": b"/http://elsewhere/a",
}

TARGETS = [
    row(
        f"a target with {what} is kept byte for byte",
        get(target),
        status(200),
        backend.line(b"GET %b HTTP/1.1" % target),
    )
    for what, target in _TARGETS.items()
] + [
    row(
        "a target outside ASCII is kept byte for byte",
        get(b"/caf\xc3\xa9"),
        status(200),
        backend.line(b"GET /caf\xc3\xa9 HTTP/1.1"),
    ),
    row("OPTIONS * asks the backend", get(b"*", method=b"OPTIONS"), status(200), backend.line(b"OPTIONS * HTTP/1.1")),
    row(
        "a whole address is refused, or its path asked of the one backend",
        request(b"GET http://elsewhere/a HTTP/1.1"),
        either(REFUSED, (status(200), backend.line(b"GET /a HTTP/1.1")), (status(200), never(b"elsewhere"))),
    ),
    row("CONNECT is refused", b"CONNECT elsewhere:443 HTTP/1.1\r\nHost: elsewhere:443\r\n\r\n", *REFUSED),
    row("CONNECT with a path is refused", b"CONNECT / HTTP/1.1\r\nHost: front\r\n\r\n", *REFUSED),
]

_BAD_LINES: Final = {
    "a target without slash": b"GET nothing HTTP/1.1",
    "* to GET": b"GET * HTTP/1.1",
    "no target": b"GET HTTP/1.1",
    "a space in the target": b"GET /a b HTTP/1.1",
    "a tab in the target": b"GET /a\tb HTTP/1.1",
    "a NUL in the target": b"GET /a\x00b HTTP/1.1",
    "a carriage return in the target": b"GET /a\rb HTTP/1.1",
    "a version that is none": b"GET / HTTP/x.y",
    "a version of two digits": b"GET / HTTP/1.10",
    "HTTP/2 in a line of HTTP/1": b"GET / HTTP/2.0",
    "another protocol": b"GET / RTSP/1.0",
    "no method": b" / HTTP/1.1",
    "a method that is no token": b"G(T / HTTP/1.1",
}

MALFORMED = [
    row(f"a first line with {what} is refused", request(line), *REFUSED) for what, line in _BAD_LINES.items()
] + [
    row("TLS is refused", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\r\n\r\n", *REFUSED),
    row("HTTP/2 without asking is no request of HTTP/1", (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", END), asked(0)),
    row(
        "a head of 80 KiB is refused as too large, by name",
        get(b"/", b"X-A: " + b"a" * 80 * 1024, b"Authorization: s3cr3t"),
        status(431),
        asked(0),
        unsaid(b"s3cr3t"),
    ),
    row(
        "a thousand small fields that are too many bytes are refused as too large, by name",
        get(b"/", *(b"X-%d: " % n + b"a" * 90 for n in range(1000))),
        status(431),
        asked(0),
    ),
    row(
        "a target of 100 KiB is refused as too large, by name",
        get(b"/" + b"a" * 100 * 1024),
        either((status(431),), (status(414),)),
        asked(0),
    ),
]

METHODS = [
    row(
        f"{method.decode()} goes through",
        get(b"/m", method=method),
        status(200),
        backend.line(method + b" /m HTTP/1.1"),
    )
    for method in (b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"PROPFIND", b"PURGE", b"QUERY")
] + [
    row("a method nobody knows goes through", get(method=b"FETCH"), status(200), backend.line(b"FETCH / HTTP/1.1")),
    row("a method in lower case is another method", get(method=b"get"), status(200), backend.line(b"get / HTTP/1.1")),
]

BODIES = [
    row("a body arrives byte for byte", post(_BYTES), status(200), backend.body(_BYTES)),
    row("a body of 8 MiB arrives", post(b"\xa5" * 8 * MIB), status(200), backend.body(b"\xa5" * 8 * MIB)),
    row("an empty body keeps its length", post(b""), status(200), backend.has(b"Content-Length: 0")),
    row(
        "a GET may have a body",
        request(b"GET / HTTP/1.1", b"Content-Length: 3", body=b"abc"),
        status(200),
        backend.body(b"abc"),
    ),
    row(
        "a DELETE may have a body",
        request(b"DELETE / HTTP/1.1", b"Content-Length: 3", body=b"abc"),
        status(200),
        backend.body(b"abc"),
    ),
    row(
        "a GET without body gets none, and no framing",
        get(),
        status(200),
        backend.lacks(b"content-length", b"transfer-encoding"),
    ),
    row(
        "a coded body is not unpacked",
        post(b"\x1f\x8b\x08\0zzz", b"Content-Encoding: gzip"),
        status(200),
        backend.body(b"\x1f\x8b\x08\0zzz"),
        backend.has(b"Content-Encoding: gzip"),
    ),
    row(
        "a body that looks like a request is a body",
        (post(get(b"/smuggled")), ANSWER, get(b"/next"), Answers(2)),
        status(200, 200),
        backend.body(get(b"/smuggled")),
        backend.line(b"GET /next HTTP/1.1", nth=1),
        asked(2),
    ),
    row("a chunked body arrives", chunks(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"), status(200), backend.body(b"abcde")),
    row("an empty chunked body arrives", chunks(b"0\r\n\r\n"), status(200), backend.body(b"")),
    row(
        "chunk sizes may be in upper case",
        chunks(b"A\r\n0123456789\r\n0\r\n\r\n"),
        status(200),
        backend.body(b"0123456789"),
    ),
    row("chunk sizes may begin with zeros", chunks(b"0003\r\nabc\r\n00\r\n\r\n"), status(200), backend.body(b"abc")),
    row("chunk extensions do no harm", chunks(b'3;a=b;c="d"\r\nabc\r\n0;e\r\n\r\n'), status(200), backend.body(b"abc")),
    row(
        "a Transfer-Encoding in upper case is chunks",
        request(b"POST / HTTP/1.1", b"Transfer-Encoding: CHUNKED", body=b"3\r\nabc\r\n0\r\n\r\n"),
        status(200),
        backend.body(b"abc"),
    ),
    row(
        "a chunked body sent byte by byte arrives",
        (Slowly(chunks(b"3\r\nabc\r\n0\r\n\r\n")),),
        status(200),
        backend.body(b"abc"),
    ),
    row(
        "trailers never become fields of another request",
        (
            chunks(b"3\r\nabc\r\n0\r\nAuthorization: stolen\r\n\r\n") + get(b"/next"),
            ANSWER,
        ),
        backend.lacks(b"authorization"),
        either((asked(1),), (asked(2), backend.lacks(b"authorization", nth=1))),
    ),
]

_WAITING: Final = request(b"POST / HTTP/1.1", b"Content-Length: 3", b"Expect: 100-continue")

_POLITE: Final = ((CONTINUE, WHOLE, OK),)

EXPECT = [
    row(
        "who expects 100 Continue gets it, then the answer",
        (_WAITING, Interim(), b"abc", ANSWER),
        status(200),
        interim(100),
        backend.body(b"abc"),
        backend=_POLITE,
    ),
    row(
        "a backend's refusal spares an upload that waits for 100 Continue",
        (_WAITING, ANSWER),
        status(413),
        interim(),
        client.body(b"big"),
        backend=((b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig",),),
    ),
    row(
        "an upload that waits for 100 Continue does not wait for a backend that never says it",
        (_WAITING, Interim(), b"abc", ANSWER),
        status(200),
        backend.body(b"abc"),
        backend=OK,
    ),
    row(
        "a body that does not wait for 100 Continue arrives",
        (_WAITING + b"abc", ANSWER),
        status(200),
        backend.body(b"abc"),
        backend=_POLITE,
    ),
    row(
        "Expect in capitals is the same",
        (_WAITING.replace(b"100-continue", b"100-Continue"), Interim(), b"abc", ANSWER),
        status(200),
        backend.body(b"abc"),
        backend=_POLITE,
    ),
    row(
        "after 100 Continue the connection goes on",
        (_WAITING, Interim(), b"abc", ANSWER, get(b"/next"), Answers(2)),
        status(200, 200),
        backend.line(b"GET /next HTTP/1.1", nth=1),
        backend=_POLITE,
    ),
]
