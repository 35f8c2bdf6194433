"""Rows: requests and answers whose end two readers would find in different places.

Whatever a proxy does with such a request, the text behind it must never become a request of its own,
and what it passes on must have one framing. An answer of that kind must not reach a client as if it were whole.
"""

from __future__ import annotations

from typing import Final

from tests.transparency.row import (
    ANSWER,
    END,
    ERROR,
    GONE,
    HOST,
    OK,
    REFUSAL,
    TRUNCATED,
    WHOLE,
    Answers,
    Check,
    Row,
    answer,
    asked,
    backend,
    client,
    either,
    get,
    never,
    request,
    row,
    status,
    unsaid,
)

_SMUGGLED: Final = get(b"/smuggled")
_CHUNKED: Final = b"Transfer-Encoding: chunked"
_LENGTH: Final = b"Content-Length: 5"
_POST: Final = b"POST / HTTP/1.1\r\n" + HOST + b"\r\n"


def _refused(what: str, raw: bytes) -> Row:
    """The client is told so, and the backend never gets it whole, nor what lies behind."""
    return row(f"{what}: refused", (raw + _SMUGGLED, END), _FIRST_IS_ERROR, asked(0), never(b"smuggled"))


def _one_way(what: str, raw: bytes, body: bytes = b"") -> Row:
    """Refused; or passed on with one framing, as the body that the RFC finds in it."""
    one = either((backend.lacks(b"content-length"),), (backend.lacks(b"transfer-encoding"),))
    return row(
        f"{what}: refused, or read in one way",
        (raw, ANSWER),
        either((status(REFUSAL), asked(0)), (_FIRST_IS_GOOD, backend.body(body), one, _ONE_LENGTH, asked(1))),
    )


_FIRST_IS_ERROR: Final = Check(
    "the client gets an error, or the end",
    lambda seen: not seen.client.answers or seen.client.answers[0].status in REFUSAL,
)

_FIRST_IS_GOOD: Final = Check(
    "the client gets 200", lambda seen: bool(seen.client.answers) and seen.client.answers[0].status == 200
)
_ONE_LENGTH: Final = Check(
    "the backend sees one length at most", lambda seen: len(seen.backend.messages[0].values(b"content-length")) <= 1
)


def _head(*fields: bytes, body: bytes = b"") -> bytes:
    return request(b"POST / HTTP/1.1", *fields, body=body)


_LENGTHS: Final = {
    "two different lengths": _head(b"Content-Length: 5", b"Content-Length: 6", body=b"abcde"),
    "a list of different lengths": _head(b"Content-Length: 5, 6", body=b"abcde"),
    "a length with a plus": _head(b"Content-Length: +5", body=b"abcde"),
    "a negative length": _head(b"Content-Length: -5", body=b"abcde"),
    "a length in hex": _head(b"Content-Length: 0x5", body=b"abcde"),
    "a length with an underscore": _head(b"Content-Length: 0_5", body=b"abcde"),
    "a length with a space within": _head(b"Content-Length: 0 5", body=b"abcde"),
    "a length with a fraction": _head(b"Content-Length: 5.0", body=b"abcde"),
    "a length beyond 64 bits": _head(b"Content-Length: 18446744073709551621", body=b"abcde"),
    "an empty length": _head(b"Content-Length: ", body=b"abcde"),
    "a length in words": _head(b"Content-Length: five", body=b"abcde"),
    "a length in Arabic digits": _head(b"Content-Length: \xd9\xa5", body=b"abcde"),
    "a space before the colon of Content-Length": _head(b"Content-Length : 5", body=b"abcde"),
}

_ZERO: Final = b"0\r\n\r\n"
_CODINGS: Final = {
    "a coding that is not chunked": _head(b"Transfer-Encoding: xchunked", body=_ZERO),
    "chunked that is not last": _head(b"Transfer-Encoding: chunked, identity", body=_ZERO),
    "chunked twice in one field": _head(b"Transfer-Encoding: chunked, chunked", body=_ZERO),
    "chunked twice in two fields": _head(_CHUNKED, _CHUNKED, body=_ZERO),
    "identity": _head(b"Transfer-Encoding: identity", _LENGTH, body=b"abcde"),
    "another coding beside chunked, in two fields": _head(b"Transfer-Encoding: identity", _CHUNKED, body=_ZERO),
    "a coding behind a vertical tab": _head(b"Transfer-Encoding: \x0bchunked", body=_ZERO),
    "a coding in quotes": _head(b'Transfer-Encoding: "chunked"', body=_ZERO),
    "a coding with a parameter": _head(b"Transfer-Encoding: chunked;a=b", body=_ZERO),
    "an empty coding": _head(b"Transfer-Encoding: ", _LENGTH, body=b"abcde"),
    "a space before the colon of Transfer-Encoding": _head(b"Transfer-Encoding : chunked", body=_ZERO),
    "a tab before the colon of Transfer-Encoding": _head(b"Transfer-Encoding\t: chunked", body=_ZERO),
    "a Transfer-Encoding with a NUL": _head(b"Transfer-Encoding: chun\0ked", body=_ZERO),
}

_HEADS: Final = {
    "a folded first field": b"GET / HTTP/1.1\r\n X-A: a\r\n" + HOST + b"\r\n\r\n",
    "a space before a colon": _head(b"X-A : a", b"Content-Length: 0"),
    "a space in a name": _head(b"X A: a", b"Content-Length: 0"),
    "a field without colon": _head(b"X-A", b"Content-Length: 0"),
    "a field without name": _head(b": a", b"Content-Length: 0"),
    "a NUL in a value": _head(b"X-A: a\0b", b"Content-Length: 0"),
    "a NUL in a name": _head(b"X\0A: a", b"Content-Length: 0"),
    "a carriage return in a value": _head(b"X-A: a\rb", b"Content-Length: 0"),
    "a carriage return in a name": _head(b"X\rA: a", b"Content-Length: 0"),
}

_BAD_CHUNKS: Final = {
    "a chunk size with 0x": b"0x3\r\nabc\r\n0\r\n\r\n",
    "a negative chunk size": b"-3\r\nabc\r\n0\r\n\r\n",
    "a chunk size with a plus": b"+3\r\nabc\r\n0\r\n\r\n",
    "a chunk size with an underscore": b"0_3\r\nabc\r\n0\r\n\r\n",
    "a chunk size behind a space": b" 3\r\nabc\r\n0\r\n\r\n",
    "a chunk size that is no number": b"g\r\nabc\r\n0\r\n\r\n",
    "no chunk size": b"\r\nabc\r\n0\r\n\r\n",
    "a chunk size beyond 64 bits": b"10000000000000003\r\nabc\r\n0\r\n\r\n",
    "a chunk that is longer than its size": b"3\r\nabcd\r\n0\r\n\r\n",
    "a chunk that is shorter than its size": b"5\r\nabc\r\n0\r\n\r\n",
    "a chunk size that a CR alone ends": b"3\rabc\r\n0\r\n\r\n",
    "a LF in a chunk extension": b"3;a\nb\r\nabc\r\n0\r\n\r\n",
    "a CR in a chunk extension": b"3;a\rb\r\nabc\r\n0\r\n\r\n",
}

REQUESTS = (
    [_refused(what, raw) for what, raw in (_LENGTHS | _CODINGS | _HEADS).items()]
    + [_refused(what, _head(_CHUNKED, body=raw)) for what, raw in _BAD_CHUNKS.items()]
    + [
        _one_way("a length, then chunks", _head(_LENGTH, _CHUNKED, body=_ZERO)),
        _one_way("chunks, then a length", _head(_CHUNKED, _LENGTH, body=_ZERO)),
        _one_way("chunks, and a length that covers a request", _head(_CHUNKED, b"Content-Length: 60", body=_ZERO)),
        _one_way("the same length twice", _head(_LENGTH, _LENGTH, body=b"abcde"), b"abcde"),
        _one_way("a list of the same length", _head(b"Content-Length: 5, 5", body=b"abcde"), b"abcde"),
        _one_way("chunks in HTTP/1.0", request(b"POST / HTTP/1.0", _CHUNKED, body=_ZERO)),
        _one_way("lines that end in LF alone", b"GET / HTTP/1.1\nHost: front\n\n"),
        _one_way("one line that ends in LF alone", _POST + b"X-A: a\nContent-Length: 0\r\n\r\n"),
        _one_way("an empty line that ends in LF alone", _POST + b"Content-Length: 0\r\n\n"),
        _one_way("a bare CR before the line end", _POST + b"X-A: a\r\r\nContent-Length: 0\r\n\r\n"),
        _one_way("a folded field", _head(b"X-A: a\r\n b", b"Content-Length: 0")),
        _one_way("a folded Content-Length", _head(b"Content-Length:\r\n 5", body=b"abcde"), b"abcde"),
        _one_way("a folded Transfer-Encoding", _head(b"Transfer-Encoding:\r\n chunked", body=_ZERO)),
        _one_way("a Transfer-Encoding folded into another field", _head(b"X-A: a\r\n Transfer-Encoding: chunked")),
        _one_way("a control character in a value", _head(b"X-A: a\x01b", b"Content-Length: 0")),
        _one_way("a chunk size that a LF alone ends", _head(_CHUNKED, body=b"3\nabc\r\n0\r\n\r\n"), b"abc"),
        _one_way("a chunk that a LF alone ends", _head(_CHUNKED, body=b"3\r\nabc\n0\r\n\r\n"), b"abc"),
        _one_way("a last chunk that a LF alone ends", _head(_CHUNKED, body=b"3\r\nabc\r\n0\n\n"), b"abc"),
        _one_way("a trailer without colon", _head(_CHUNKED, body=b"3\r\nabc\r\n0\r\nnonsense\r\n\r\n"), b"abc"),
        _one_way("a trailer with a NUL", _head(_CHUNKED, body=b"3\r\nabc\r\n0\r\nX-A: a\0b\r\n\r\n"), b"abc"),
    ]
)


def _no_answer(what: str, raw: bytes) -> Row:
    """A client must not take it for a whole answer, and whoever comes next gets the backend's own next answer."""
    return row(
        f"an answer with {what} does not pass as whole",
        (get(), END),
        TRUNCATED,
        backend=((WHOLE, raw, GONE),),
    )


def _bad_gateway(what: str, raw: bytes) -> Row:
    """It is a 5xx of the proxy (or a GET is tried again); its bytes reach nobody, the client's connection goes on."""
    return row(
        f"an answer with {what} is passed to nobody, and the next request is served",
        (get(), ANSWER, get(b"/next"), Answers(2)),
        either((status(ERROR, 200),), (status(200, 200), client.body(b"ok"))),
        unsaid(b"s3cr3t"),
        client.body(b"ok", nth=1),
        backend=((WHOLE, raw, GONE), OK),
    )


_GARBAGE: Final = {
    "a status that is no number": answer(line=b"HTTP/1.1 abc OK s3cr3t"),
    "a status of two digits": answer(line=b"HTTP/1.1 20 OK", body=b"s3cr3t"),
    "a status of four digits": answer(line=b"HTTP/1.1 2000 OK", body=b"s3cr3t"),
    "no HTTP at all": b"\x16\x03\x01 s3cr3t\r\n\r\n",
    "a greeting of another protocol": b"220 mail.test ESMTP s3cr3t\r\n\r\n",
    "another version of HTTP": answer(b"Content-Length: 6", line=b"HTTP/3.7 200 OK", body=b"s3cr3t"),
    "two different lengths": answer(b"Content-Length: 6", b"Content-Length: 5", body=b"s3cr3t"),
    "a negative length": answer(b"Content-Length: -6", body=b"s3cr3t"),
    "a length that is no number": answer(b"Content-Length: six", body=b"s3cr3t"),
    "a coding that nobody asked for": answer(b"Transfer-Encoding: gzip, chunked", body=b"6\r\ns3cr3t\r\n0\r\n\r\n"),
    "a field without colon": answer(b"X-A", b"Content-Length: 6", body=b"s3cr3t"),
    "a NUL in a field": answer(b"X-A: a\0b", b"Content-Length: 6", body=b"s3cr3t"),
    "a space in a field name": answer(b"X A: b", b"Content-Length: 6", body=b"s3cr3t"),
    "a protocol switch that nobody asked for": answer(
        b"Upgrade: other", b"Connection: upgrade", line=b"HTTP/1.1 101 Switching Protocols", body=b"s3cr3t"
    ),
}

_BROKEN_CHUNKS: Final = {
    "a chunk size that is no number": b"2\r\nok\r\ng\r\nab\r\n0\r\n\r\n",
    "a negative chunk size": b"2\r\nok\r\n-1\r\nab\r\n0\r\n\r\n",
    "a chunk longer than its size": b"2\r\nok\r\n1\r\nab\r\n0\r\n\r\n",
    "a chunk size beyond 64 bits": b"2\r\nok\r\n10000000000000001\r\nab\r\n0\r\n\r\n",
}

ANSWERS = (
    [_bad_gateway(what, raw) for what, raw in _GARBAGE.items()]
    + [_no_answer(what, answer(_CHUNKED, body=raw)) for what, raw in _BROKEN_CHUNKS.items()]
    + [
        row(
            "an answer with chunks and a length has one framing when it arrives, or is a 502",
            get(),
            either((status(ERROR),), (client.body(b"ok"), client.lacks(b"content-length"))),
            backend=answer(_CHUNKED, b"Content-Length: 40", body=b"2\r\nok\r\n0\r\n\r\n"),
        ),
        row(
            "what follows an answer is no answer",
            (get(), ANSWER, get(b"/next"), Answers(2)),
            status(200, 200),
            client.body(b"ok", nth=0),
            client.body(b"ok", nth=1),
            unsaid(b"forged"),
            backend=((WHOLE, OK + answer(b"Content-Length: 6", body=b"forged"), GONE), OK),
        ),
        row(
            "a body behind the answer to HEAD is no answer",
            (get(method=b"HEAD"), ANSWER, get(b"/next"), Answers(2)),
            status(200, 200),
            client.body(b"ok", nth=1),
            unsaid(b"forged"),
            backend=(
                (WHOLE, answer(b"Content-Length: 44", body=answer(b"Content-Length: 6", body=b"forged")), GONE),
                OK,
            ),
        ),
        row(
            "a body behind a 304 is no answer",
            (get(), ANSWER, get(b"/next"), Answers(2)),
            status(304, 200),
            client.body(b"ok", nth=1),
            unsaid(b"forged"),
            backend=(
                (
                    WHOLE,
                    answer(line=b"HTTP/1.1 304 Not Modified", body=answer(b"Content-Length: 6", body=b"forged")),
                    GONE,
                ),
                OK,
            ),
        ),
    ]
)
