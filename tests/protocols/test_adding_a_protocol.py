"""The codec that docs/protocols.md shows is one: it does what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from proxy.protocols.codec import Call, Codec, Endpoint, Message, Part
from proxy.terms import Identity, Model, Reason, Rows

PAGE = Path(__file__).parents[2] / "docs/protocols.md"
MODEL = Model("", Rows.ITEMS, max_batch_size=8, instances=1, identity=Identity((), 0.0, "", known=False))


@pytest.fixture(scope="module")
def shout() -> Codec:
    """The codec of the page, made by running what stands there."""
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": "shout"}
    exec(compile(source, str(PAGE), "exec"), names)
    codec = names["Shout"]()
    assert isinstance(codec, Codec)
    return codec


def call(shout: Codec, **body: Any) -> Call:
    read = shout.parse(Endpoint(""), Message(json.dumps(body).encode()), MODEL)
    assert isinstance(read, Call)
    return read


def test_what_the_page_shows_joins_and_splits(shout: Codec) -> None:
    """Two callers' texts ride together, and each gets its own shouts, as if it had been alone."""
    one, two = call(shout, texts=["a", "b"], marks=3), call(shout, marks=3, texts=["c"])
    assert one.shared == two.shared != call(shout, texts=["c"], marks=2).shared
    parts = [Part(one, (1,)), Part(two, (0,))]
    assert json.loads(shout.join(parts, "id", [0.0, 0.0]).body) == {"texts": ["b", "c"], "marks": 3}
    split = shout.split(Message(b'{"shouts": ["B!!!", "C!!!"]}'), parts, "id")
    assert split == [[b'"B!!!"'], [b'"C!!!"']]
    answer = shout.answer(two, split[1])
    assert answer is not None
    assert json.loads(answer.body) == {"shouts": ["C!!!"]}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"texts": []}', b'{"texts": [1]}', b'{"texts": ["a"], "texts": ["b"]}'])
def test_what_the_page_shows_never_guesses(shout: Codec, body: bytes) -> None:
    """A body that is not plainly a call goes through untouched."""
    assert shout.parse(Endpoint(""), Message(body), MODEL) is Reason.UNPARSED


@pytest.mark.parametrize("body", [b"", b'{"shouts": ["A"]}', b'{"shouts": ["A", "B"], "more": 1}', b'{"other": []}'])
def test_an_answer_that_does_not_add_up_is_not_split(shout: Codec, body: bytes) -> None:
    """Members of a batch whose answer is not as expected are asked alone."""
    one = call(shout, texts=["a", "b"])
    assert shout.split(Message(body), [Part(one, (0, 1))], "id") is None
