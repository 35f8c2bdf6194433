"""Promises of `forebay check --upstream`: before anything is changed, it says what Forebay would do for a backend."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path

import pytest

from proxy.cli import main
from proxy.protocols.codec import Codec
from proxy.protocols.registry import CODECS
from tests.parts.forebay_process import ROOT
from tests.parts.raw_backend import Peer, RawBackend
from tests.upstream.answering import Table, answering

KNOWS_NOTHING = [
    "v2 and v1 calls are understood if it has their model: a route whose match.model names one shows it",
    "all else passes through, until a route's `protocol` says what it is (`json_map`: any JSON server)",
]
UNKNOWN_WEIGHTS = "* nothing that it says would show other weights; with model.revision configured, cache.ttl holds"


@pytest.fixture(autouse=True)
def _no_variables_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("FOREBAY_"):
            monkeypatch.delenv(name)


def checked(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """What the command says, given that all went well."""
    assert main(["check", *arguments]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out.splitlines()


def speak_v2(table: Table, *models: str, index: bool = True) -> None:
    """Let the backend be an Open Inference server whose models have neither config nor counters."""
    table["/v2"] = (200, b'{"name": "tiny", "version": "3", "extensions": []}')
    if index:
        table["/v2/models"] = (200, json.dumps({"models": models}).encode())
    for model in models:
        table[f"/v2/models/{model}"] = (200, json.dumps({"name": model, "versions": ["1"]}).encode())


def speak_openai(table: Table, *models: str) -> None:
    listed = [{"id": model, "object": "model", "owned_by": "vllm"} for model in models]
    table["/v1/models"] = (200, json.dumps({"object": "list", "data": listed}).encode())


def test_a_backend_and_its_models_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """One command, no file: what the server is, and for each of its models what would be joined and kept."""
    with answering() as table:
        speak_v2(table, "plain", "batched", "unbatched")
        for model, size in (("batched", 16), ("unbatched", 0)):
            config = {"max_batch_size": size, "input": [{"name": "x"}], "instance_group": [{"count": 3}]}
            table[f"/v2/models/{model}/config"] = (200, json.dumps(config).encode())
        assert checked(capsys, "--upstream", table.backend.url) == [
            f"{table.backend.url}: the backend is tiny 3, which speaks v2",
            "MODEL      REQUESTS  ITEMS              JOINED    SLOTS  KEPT AT MOST",
            "plain      v2        rows, once proved  up to 32  1      1h",
            "batched    v2        rows               up to 16  3      1h",
            "unbatched  v2        whole call         never     -      1h",
        ]
        assert {request.line.split()[0] for request in table.backend.requests} == {b"GET", b"POST"}
        assert not any(b"/infer" in request.line for request in table.backend.requests)
        assert "/v2/models/" not in table.asked  # nobody asks about a model without a name there


def test_models_are_read_from_a_repository_index(capsys: pytest.CaptureFixture[str]) -> None:
    """Of what a repository holds, as Triton and MLServer list it, those are shown that can be asked now, once."""
    with answering() as table:
        speak_v2(table, "a", "b", index=False)
        index = [{"name": "a", "version": "1", "state": "READY"}, {"name": "a", "version": "2", "state": "READY"}]
        index += [{"name": "b", "state": "UNAVAILABLE"}]
        table["/v2/repository/index"] = (200, json.dumps(index).encode())
        lines = checked(capsys, "--upstream", table.backend.url)
        assert [line.split()[0] for line in lines[1:]] == ["MODEL", "a"]
        asked = [request for request in table.backend.requests if b"index" in request.line]
        assert [request.line for request in asked] == [b"POST /v2/repository/index HTTP/1.1"]


def test_what_is_treated_alike_stands_in_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    """A model that is asked in several ways has a row for each way that Forebay treats otherwise."""
    with answering() as table:
        speak_openai(table, "qwen")
        assert checked(capsys, "--upstream", table.backend.url)[1:] == [
            "MODEL  REQUESTS                 ITEMS       JOINED    SLOTS  KEPT AT MOST",
            "qwen   /v1/embeddings           rows        up to 32  1      1m *",
            "qwen   /v1/chat/completions +1  whole call  never     -      1m *",
            UNKNOWN_WEIGHTS,
        ]


def test_a_server_of_one_model_is_shown_with_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Where requests name no model, as before a TEI, the table names the one that answers, once for each treatment."""
    info = {
        "model_id": "bge",
        "model_sha": "5c38ec7c405ec4b44b94cc5a9bb96e735b38267a",
        "model_type": {"embedding": {"pooling": "cls"}},
        "max_input_length": 512,
        "max_client_batch_size": 8,
        "version": "1.7.0",
    }
    with answering() as table:
        table["/info"] = (200, json.dumps(info).encode())
        assert checked(capsys, "--upstream", table.backend.url) == [
            f"{table.backend.url}: the backend is text-embeddings-inference 1.7.0 (bge), which speaks openai and tei",
            "MODEL  REQUESTS        ITEMS       JOINED   SLOTS  KEPT AT MOST",
            "bge    /v1/embeddings  rows        up to 8  1      1h",
            "bge    /embed +5       rows        up to 8  1      1h",
            "bge    /rerank         whole call  never    -      1h",
        ]


def test_the_routes_of_a_file_are_applied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a file its own settings decide, route by route, and each row says whose they are."""
    file = tmp_path / "forebay.yaml"
    file.write_text(
        "upstream: {targets: [http://elsewhere], slots: 5}\n"
        "cache: {ttl: 30s}\n"
        "routes:\n"
        "- {id: off, match: {path: /v2*, model: a*}, mode: off}\n"
        "- {id: rows, match: {path: /v2/models/b/infer}, rows: true, batch: {max_size: 4}, cache: {ttl: 2h}}\n"
        "- {id: single, match: {path: /v2/models/c/*}, batch: {mode: off}, cache: {mode: off}}\n"
        "- {id: azure, match: {path: /openai/*}, protocol: openai, prefix: /openai, model: {revision: one}}\n"
        "- {id: short, match: {path: /e}, alias: /v1/embeddings}\n"
        "- {id: map, match: {path: /score}, protocol: json_map, json_map: {items: /in, results: /out}, rows: true}\n"
    )
    with answering() as table:
        speak_v2(table, "a1", "b", "c", "d")
        table["/v2/models/b/config"] = (200, b'{"max_batch_size": 0}')
        speak_openai(table, "qwen")
        table["/openai/v1/models"] = table["/v1/models"]
        lines = checked(capsys, str(file), "--upstream", table.backend.url)
    assert lines[0] == f"{file}: ok"
    assert lines[2] == f"  upstream  {table.backend.url}"
    table_at = next(at for at, line in enumerate(lines) if line.startswith("MODEL"))
    assert max(map(len, lines[table_at:])) <= 100
    assert lines[table_at:] == [
        "MODEL  REQUESTS                        ITEMS              JOINED    SLOTS  KEPT AT MOST  ROUTE",
        "a1     v2                              pass through       -         -      -             off",
        "b      v2                              rows               up to 4   5      2h            rows",
        "c      v2                              whole call         never     -      no            single",
        "qwen   /openai/v1/embeddings           rows               up to 32  5      30s           azure",
        "qwen   /openai/v1/chat/completions +1  whole call         never     -      30s           azure",
        "qwen   /e                              rows               up to 32  5      30s *         short",
        "any    /score                          rows               up to 32  5      30s *         map",
        "d      v2                              rows, once proved  up to 32  5      30s           default",
        "qwen   /v1/embeddings                  rows               up to 32  5      30s *         default",
        "qwen   /v1/chat/completions +1         whole call         never     -      30s *         default",
        UNKNOWN_WEIGHTS,
    ]


def test_a_model_that_only_a_route_names_is_asked_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that lists no models, as TensorFlow Serving, is asked about those that the file names; others say so."""
    file = tmp_path / "forebay.yaml"
    file.write_text("routes:\n- {id: a, match: {model: mine}}\n- {id: b, match: {model: m*}}\n")
    with answering() as table:
        speak_v2(table, index=False)
        url = table.backend.url
        assert checked(capsys, "--upstream", url)[1:] == [
            "it lists no models: a route whose match.model names one is shown here"
        ]
        table["/v2/models/mine"] = (200, b'{"name": "mine", "versions": ["1"]}')
        lines = checked(capsys, str(file), "--upstream", url)
        assert lines[-1].split() == ["mine", "v2", "rows,", "once", "proved", "up", "to", "32", "1", "1h", "a"]
        table["/v2/models/mine"] = (503, b"")
        lines = checked(capsys, str(file), "--upstream", url)
        assert lines[-1].split() == ["mine", "v2", "cannot", "be", "asked", "now", "-", "-", "-", "a"]


def test_a_route_may_know_more_than_the_backend_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a route says which protocol it has, its requests are shown though the backend names none."""
    file = tmp_path / "forebay.yaml"
    file.write_text("routes:\n- {id: tei, match: {path: /tei/*}, prefix: /tei, protocol: tei}\n")
    with answering() as table:
        lines = checked(capsys, str(file), "--upstream", table.backend.url)
    shown = [line for line in lines if line.startswith("any")]
    assert [line.split()[1] for line in shown] == ["/tei/embed", "/tei/rerank"]
    assert all(line.endswith(" tei") for line in shown)


def test_a_backend_of_no_known_protocol_passes_through(capsys: pytest.CaptureFixture[str]) -> None:
    """A home-made server is told of what it would get, and how more is had."""
    with answering() as table:
        assert checked(capsys, "--upstream", table.backend.url) == [
            f"{table.backend.url}: the backend names no protocol that Forebay knows",
            *KNOWS_NOTHING,
        ]


def test_a_backend_that_cannot_answer_now_is_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    """While it loads, nobody is told that Forebay does not know it."""
    with answering() as table:
        for codec in CODECS:
            table.update(dict.fromkeys(codec.probes, (503, b"")))
        assert checked(capsys, "--upstream", table.backend.url) == [
            f"{table.backend.url}: the backend cannot say now what it is"
        ]


def test_a_backend_behind_a_key_is_asked_with_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its key the missing setting is named; with it the backend is asked, and the key is not shown."""

    def script(peer: Peer) -> None:
        while True:
            request = peer.request()
            if dict(request.fields).get(b"Authorization") != b"Bearer k3y":
                peer.answer(b"", status=b"401 Unauthorized")
            elif b" /v1/models " in request.line:
                peer.answer(b'{"object": "list", "data": [{"id": "gpt", "object": "model", "owned_by": "us"}]}')
            else:
                peer.answer(b"", status=b"404 Not Found")

    with RawBackend(script) as backend:
        assert checked(capsys, "--upstream", backend.url) == [
            f"{backend.url}: the backend asks for credentials: set upstream.authorization"
        ]
        monkeypatch.setenv("FOREBAY_UPSTREAM__AUTHORIZATION", "Bearer k3y")
        lines = checked(capsys, "--upstream", backend.url)
    assert lines[0] == f"{backend.url}: the backend is us (gpt), which speaks openai"
    assert not any("k3y" in line for line in lines)


def test_names_cannot_spoil_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A name of any length and kind takes one cell of one line and sends nothing to the terminal but text."""
    with answering() as table:
        speak_openai(table, "x" * 300, "red\x1b[31m\n")
        lines = checked(capsys, "--upstream", table.backend.url)
    assert lines[0].endswith(f": the backend is vllm ({'x' * 39}…, 'red\\x1b[31m\\n'), which speaks openai")
    assert [line.split()[0] for line in lines[2:-1]] == ["x" * 39 + "…"] * 2 + ["'red\\x1b[31m\\n'"] * 2


def test_a_model_server_may_have_forebays_own_port(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a file nothing would listen, so a server at 8080, as many are, is asked as any other."""
    with answering() as table:
        speak_openai(table, "qwen")
        monkeypatch.setenv("FOREBAY_LISTEN", table.backend.url.removeprefix("http://"))
        lines = checked(capsys, "--upstream", table.backend.url)
    assert lines[0] == f"{table.backend.url}: the backend is vllm (qwen), which speaks openai"


def test_a_backend_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody listens: one line on stderr that says so, and exit 1."""
    with socket.socket() as taken:  # bound, not listening: nobody answers there
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert main(["check", "--upstream", url]) == 1
    assert capsys.readouterr() == ("", f"forebay: cannot connect to {url}: connection refused\n")


def test_the_shipped_files_do_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    """config/vllm.yaml, tei.yaml and fastapi.yaml, each before such a server: what is cut, joined and kept."""

    def rows(name: str) -> list[list[str]]:
        lines = checked(capsys, str(ROOT / "config" / name), "--upstream", table.backend.url)
        return [re.split(r" {2,}", line) for line in lines if " up to " in line or "whole call" in line]

    with answering() as table:
        assert rows("fastapi.yaml") == [
            ["any", "/predict_batch", "rows, once proved", "up to 32", "1", "1m *", "lists"],
            ["any", "/predict", "rows, once proved", "up to 32", "1", "1m *", "singles"],
        ]
        speak_openai(table, "qwen")
        assert rows("vllm.yaml") == [
            ["qwen", "/v1/embeddings", "rows", "up to 64", "4", "1m *"],
            ["qwen", "/v1/chat/completions +1", "whole call", "never", "-", "1m *"],
        ]
    with answering() as table:
        info = {"model_id": "bge", "model_type": {"reranker": {}}, "max_client_batch_size": 32, "version": "1.7.0"}
        table["/info"] = (200, json.dumps(info).encode())
        table["/metrics"] = (200, b"")
        assert rows("tei.yaml") == [
            ["bge", "/rerank", "rows, once proved", "up to 32", "2", "1h", "rerank"],
            ["bge", "/v1/embeddings", "rows", "up to 32", "2", "1m *", "default"],
            ["bge", "/embed +5", "rows", "up to 32", "2", "1h", "default"],
        ]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_every_codec_is_shown_by_some_path(codec: Codec) -> None:
    """A protocol that Forebay learns is not forgotten here, and no path is shown that it does not take."""
    assert codec.paths
    for path in codec.paths:
        assert codec.recognise("POST", path.format(model="m")) is not None
