"""The admin listener as a web page in a browser on the same machine sees it: what the page makes the browser send.

The requests are those that browsers send of their own accord, by the Fetch standard: without asking first, a page of
another origin may send GET, HEAD and POST with one of three content types or none, and cannot choose Host, Origin or
Authorization. A page whose name was rebound to 127.0.0.1 may send anything to its own name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.parts.forebay import Running, forebay
from tests.parts.forebay_process import forebay_process
from tests.parts.model_backend import model_server

PAGE = "http://evil.example"
TOKEN, PASSWORD, KEY = "t0ken-of-the-admin", "passw0rd-of-redis", "k3y-of-the-proofs"


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    """With every default: on loopback, without a token."""
    async with model_server() as model, forebay(model.url) as sidecar:
        yield sidecar


async def ask(
    running: Running, method: str, path: str, *, host: str = "", body: str = "", **fields: str
) -> tuple[int, dict[str, str]]:
    """Status and fields of the answer to a request written by hand. host: where the page thinks that it is."""
    at, _, port = running.sidecar.admin_address.rpartition(":")
    reader, writer = await asyncio.open_connection(at, int(port))
    written = {"Host": f"{host or at}:{port}", "Content-Length": str(len(body)), "Connection": "close"}
    written |= {name.replace("_", "-"): value for name, value in fields.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in written.items())
    writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n{body}".encode("latin-1"))
    async with asyncio.timeout(20):
        answer = (await reader.read()).decode("latin-1")
    writer.close()
    status, *lines = answer.partition("\r\n\r\n")[0].split("\r\n")
    return int(status.split()[1]), {line.partition(":")[0].lower(): line.partition(": ")[2] for line in lines}


def draining(running: Running) -> bool:
    return running.sidecar.not_ready() == "draining"


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/x-www-form-urlencoded", "a=b"),
        ("multipart/form-data; boundary=x", '--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--x--\r\n'),
        ("text/plain", '{"a":"b"}'),
        ("text/plain; charset=application/json", "{}"),
        ("text/plain;application/json", "{}"),
    ],
)
async def test_a_form_on_another_page_changes_nothing(running: Running, content_type: str, body: str) -> None:
    """Neither a form nor a `no-cors` fetch of any page can drain Forebay."""
    status, _ = await ask(
        running, "POST", "/drain", body=body, Content_Type=content_type, Origin=PAGE, Sec_Fetch_Site="cross-site"
    )
    assert status == 403
    assert not draining(running)


async def test_a_fetch_without_a_body_changes_nothing(running: Running) -> None:
    """`fetch(…, {method: "POST"})` sends no content type at all."""
    assert (await ask(running, "POST", "/drain", Origin=PAGE))[0] == 403
    assert not draining(running)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_an_image_or_a_link_changes_nothing(running: Running, method: str) -> None:
    """Nothing that changes something answers to a method that pages use freely."""
    assert (await ask(running, method, "/drain", Referer=f"{PAGE}/"))[0] == 405
    assert not draining(running)


@pytest.mark.parametrize("path", ["/drain", "/config", "/metrics"])
async def test_a_browser_that_asks_first_is_not_encouraged(running: Running, path: str) -> None:
    """The question before a JSON post across origins gets no leave, so that the post is never sent."""
    status, fields = await ask(
        running,
        "OPTIONS",
        path,
        Origin=PAGE,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="content-type",
        Access_Control_Request_Private_Network="true",
    )
    assert status == 405
    assert not [name for name in fields if name.startswith("access-control-")]


@pytest.mark.parametrize("path", ["/config", "/metrics", "/readyz", "/livez", "/startupz", "/drained", "/drain"])
async def test_a_page_of_another_origin_cannot_read(running: Running, path: str) -> None:
    """No answer allows another origin to look at it, with credentials or without."""
    method = "POST" if path == "/drain" else "GET"
    _, fields = await ask(running, method, path, Origin=PAGE)
    assert not [name for name in fields if name.startswith("access-control-")]


@pytest.mark.parametrize(
    "name",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "evil.example#127.0.0.1",
        "0.0.0.0",
        "169.254.169.254",
        "[::]",
        "[fe80::1]",
        "\xe9vil.example",
    ],
)
async def test_a_page_whose_name_was_rebound_changes_nothing(running: Running, name: str) -> None:
    """DNS rebinding makes a page same-origin with Forebay, but under a name that is not loopback's."""
    status, _ = await ask(
        running,
        "POST",
        "/drain",
        host=name,
        body="{}",
        Content_Type="application/json",
        Origin=f"http://{name}",
        Sec_Fetch_Site="same-origin",
    )
    assert status in {400, 403}
    assert not draining(running)


async def test_a_person_at_the_machine_may(running: Running) -> None:
    """The very request that a page cannot send is taken: what is refused above is refused for its origin alone."""
    status, _ = await ask(running, "POST", "/drain", Content_Type="application/json")
    assert status == 202
    assert draining(running)


@pytest.mark.parametrize(
    "credential", ["", "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer \xff"]
)
async def test_where_there_is_a_token_nothing_else_counts(credential: str, tmp_path: Path) -> None:
    """Neither loopback nor a content type helps without the whole token, nor does one that is not even text."""
    file = tmp_path / "forebay.yaml"
    file.write_text(f"admin_token: {TOKEN}\n")
    async with model_server() as model, forebay(model.url, config=file) as running:
        fields = {"Content_Type": "application/json"} | ({"Authorization": credential} if credential else {})
        assert (await ask(running, "POST", "/drain", **fields))[0] == 403
        assert not draining(running)
        assert (await ask(running, "POST", "/drain", Authorization=f"Bearer {TOKEN}"))[0] == 202


async def test_no_secret_is_shown_or_logged(tmp_path: Path) -> None:
    """Token, password and key are in no answer of either listener and in no line of the log, whatever goes wrong."""
    file = tmp_path / "forebay.yaml"
    file.write_text(
        f"admin_token: {TOKEN}\nredis: redis://user:{PASSWORD}@127.0.0.1:1/0\ncache: {{proof_key: {KEY}}}\n"
    )
    call = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [1, 1], "data": [1]}]}
    async with model_server() as model, forebay_process(model.url, "--config", str(file)) as process:
        await process.ready()
        shown = [(await process.asked(path))[1] for path in ("/config", "/metrics", "/readyz", "/drained", "/nowhere")]
        for _ in range(2):
            headers = {"Authorization": "Bearer of-a-caller", "Cookie": "c=of-a-caller"}
            async with process.session.post(
                f"{process.url}/v2/models/double/infer", json=call, headers=headers
            ) as answer:
                shown += [await answer.text(), str(answer.headers)]
        wrong = {"Authorization": f"Bearer {TOKEN}-and-more"}
        async with process.session.post(f"http://{process.admin}/drain", headers=wrong) as answer:
            assert answer.status == 403
            shown.append(await answer.text())
        assert '"admin_token": "***"' in shown[0]
        shown += process.lines
        assert any("redis" in line.lower() for line in process.lines), "Redis is not there, and the log says so"
    for text in shown:
        for secret in (TOKEN, PASSWORD, KEY, "of-a-caller"):
            assert secret not in text
