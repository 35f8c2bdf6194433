"""Promises of the configuration: what is written is what applies, and every mistake is named where it stands."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from proxy import config_docs, config_tree
from proxy import config_values as values
from proxy.batching.settings import BatchMode
from proxy.config import Mistakes, Settings, as_dict, load, variable
from proxy.config_reader import Reader, leaves
from proxy.routing import Mode
from proxy.settings import Bytes, Seconds, setting

ROOT = Path(__file__).parent.parent
URL = "http://127.0.0.1:8000"
SECRET = "hunter2"

no_deadline = hypothesis_settings(deadline=None)  # the machine may be busy


def read(path: Path, text: str, /, environ: dict[str, str] | None = None, **flags: str) -> Settings:
    path = path / "forebay.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path, environ or {}, {"upstream": URL} | flags)


def mistakes(path: Path, text: str, environ: dict[str, str] | None = None, **flags: str) -> list[str]:
    """Every mistake without the folder that the file lies in."""
    with pytest.raises(Mistakes) as caught:
        read(path, text, environ, **flags)
    return [str(mistake).removeprefix(f"{path}/") for mistake in caught.value.found]


def test_only_the_upstream_must_be_given() -> None:
    """`forebay serve --upstream URL` is a whole configuration."""
    settings = load(None, {}, {"upstream": URL})
    assert settings == dataclasses.replace(
        Settings(), upstream=dataclasses.replace(Settings().upstream, targets=(URL,))
    )
    with pytest.raises(Mistakes, match=r"^forebay: no upstream: .*--upstream URL.*FOREBAY_UPSTREAM"):
        load(None, {}, {})
    assert load(None, {}, {}, upstream_required=False).upstream.targets == ()


def test_flags_count_more_than_variables_and_those_more_than_the_file(tmp_path: Path) -> None:
    """An operator can override a mounted file without editing it."""
    text = "batch: {max_delay: 1ms, max_size: 1, max_queue: 11}"
    environ = {"FOREBAY_BATCH__MAX_DELAY": "2ms", "FOREBAY_BATCH__MAX_SIZE": "2"}
    batch = read(tmp_path, text, environ, **{"batch.max_delay": "3ms"}).batch
    assert (batch.max_delay, batch.max_size, batch.max_queue) == (0.003, 2, 11)


def test_the_upstream_may_be_just_a_url_wherever_it_is_said(tmp_path: Path) -> None:
    """A URL replaces the target and leaves the other upstream settings alone."""
    path = tmp_path / "forebay.yaml"
    path.write_text("upstream: http://file:1/\n")
    environ = {"FOREBAY_UPSTREAM__TIMEOUT__CONNECT": "7s"}
    upstream = load(path, environ, {}).upstream
    assert (upstream.targets, upstream.timeout.connect) == (("http://file:1",), 7.0)
    path.write_text("upstream: {targets: [http://file:1], keepalive: 9s}\n")
    upstream = load(path, {"FOREBAY_UPSTREAM": "https://variable"}, {}).upstream
    assert (upstream.targets, upstream.keepalive) == (("https://variable",), 9.0)


def test_every_setting_outside_routes_can_be_said_in_a_variable() -> None:
    """The name in a variable is the name in the file."""
    environ = {variable(path): _another(leaf.kind, leaf.default) for path, leaf in leaves(Settings)}
    environ |= {"FOREBAY_UPSTREAM__TARGETS": "http://elsewhere", "FOREBAY_LISTEN": "[::1]:1", "FOREBAY_ADMIN": "h:2"}
    environ |= {"FOREBAY_REDIS": "redis://r", "FOREBAY_CACHE__TENANT": "header:X-Who", "FOREBAY_BATCH__MAX_SIZE": "9"}
    environ |= {"FOREBAY_PROTOCOL": "tei"}
    settings = load(None, environ, {})
    for path, leaf in leaves(Settings):
        value: Any = settings
        for name in path:
            value = getattr(value, name)
        assert value != leaf.default, path


def _another(kind: Any, default: Any) -> str:
    """Some value that is not the default."""
    if kind is Seconds:
        return "1234ms"
    if kind is Bytes:
        return "12345KiB"
    if kind is int:
        return "7"
    if kind is bool:
        return "false" if default else "true"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return str(next(member.value for member in kind if member is not default))
    return "text"


def test_variables_that_kubernetes_makes_are_not_ours() -> None:
    """A Service called `forebay`, or `forebay-admin`, in the same namespace keeps nothing from starting."""
    made = {
        "FOREBAY_SERVICE_HOST": "10.0.0.1",
        "FOREBAY_SERVICE_PORT": "80",
        "FOREBAY_SERVICE_PORT_HTTP": "80",
        "FOREBAY_PORT": "tcp://10.0.0.1:80",
        "FOREBAY_PORT_80_TCP": "tcp://10.0.0.1:80",
        "FOREBAY_PORT_80_TCP_PROTO": "tcp",
        "FOREBAY_PORT_80_TCP_PORT": "80",
        "FOREBAY_PORT_80_TCP_ADDR": "10.0.0.1",
        "FOREBAY_ADMIN_SERVICE_HOST": "10.0.0.2",
        "FOREBAY_ADMIN_PORT": "tcp://10.0.0.2:9901",
        "FOREBAY_ADMIN_PORT_9901_TCP_ADDR": "10.0.0.2",
        "FOREBAY_REDIS": "",  # an empty variable says nothing
        "PATH": "/bin",
    }
    assert load(None, made, {"upstream": URL}) == load(None, {}, {"upstream": URL})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("FOREBAY_BATCH_MAX_DELAY", "1ms", "is not the name of a setting; did you mean FOREBAY_BATCH__MAX_DELAY?"),
        ("FOREBAY_PORT", "8080", "is not the name of a setting"),
        ("FOREBAY_ROUTES", "[]", "routes can only be written in a file"),
        ("FOREBAY_XYZZY", "1", "is not the name of a setting; docs/config.md lists the variables"),
        ("FOREBAY_BATCH__MAX_DELAY", "5", "'5' has no unit: write 5ms or 5s"),
        ("FOREBAY_BATCH__PREFERRED_SIZES", "8,0", "'0' is too small: at least 1"),
    ],
)
def test_a_mistake_in_a_variable_is_named(name: str, value: str, said: str) -> None:
    """A misspelt variable is not silently without effect."""
    with pytest.raises(Mistakes) as caught:
        load(None, {name: value}, {"upstream": URL})
    (mistake,) = map(str, caught.value.found)
    assert mistake.startswith(f"{name}: {said}")


MISTAKES = [
    # names
    ("batch:\n  max_dely: 5ms", "2:3: batch.max_dely: is not known; did you mean max_delay?"),
    ("batch: {max-delay: 5ms}", "1:9: batch.max-delay: is not known; did you mean max_delay?"),
    ("max_delay: 5ms", "1:1: max_delay: is not known here; did you mean batch.max_delay?"),
    ("cache: {timeout: 5ms}", "1:9: cache.timeout: is not known here; did you mean upstream.timeout?"),
    ("routes: [{id: a, match: {}, ttl: 1h}]", "1:29: routes[0].ttl: is not known here; did you mean cache.ttl?"),
    ("batch: {qqqqq: 1}", "1:9: batch.qqqqq: is not known; known here: mode, max_size, max_delay"),
    ("mode: on\nmode: off", "2:1: `mode` stands here twice: first at 1:1"),
    ("a: &a {}\nbatch:\n  <<: *a", "3:3: YAML 1.2 has no merge key `<<`"),
    ("[a]: 1", "1:1: a name must be a single word"),
    # kinds
    (
        "batch: {mode: adaptiv}",
        "1:15: batch.mode: 'adaptiv' is not one of adaptive, fixed, off; did you mean adaptive?",
    ),
    ("batch: {mode: OFF}", "1:15: batch.mode: 'OFF' is not one of adaptive, fixed, off; did you mean off?"),
    ("mode: true", "1:7: mode: 'true' is not one of on, off"),
    ("batch: {max_size: 0}", "1:19: batch.max_size: '0' is too small: at least 1"),
    ("batch: {max_size: -1}", "1:19: batch.max_size: '-1' is too small: at least 1"),
    ("batch: {max_size: 010}", "1:19: batch.max_size: '010' is not a whole number in plain decimal digits"),
    ("batch: {max_size: 0x10}", "1:19: batch.max_size: '0x10' is not a whole number in plain decimal digits"),
    ("batch: {max_size: 1_000}", "1:19: batch.max_size: '1_000' is not a whole number in plain decimal digits"),
    ("batch: {max_size: 1e2}", "1:19: batch.max_size: '1e2' is not a whole number in plain decimal digits"),
    ("batch: {max_size: 8.0}", "1:19: batch.max_size: '8.0' is not a whole number in plain decimal digits"),
    (f"batch: {{max_size: {'9' * 5000}}}", f"1:19: batch.max_size: '{'9' * 60}…' is not a whole number"),
    ("batch: {max_size: none}", "1:19: batch.max_size: 'none' is not a whole number in plain decimal digits"),
    ("batch: {max_size: }", "1:18: batch.max_size: has no value: write a whole number"),
    ("batch: {max_size: [1]}", "1:19: batch.max_size: must be a whole number, not a list"),
    ("batch: {max_size: {a: 1}}", "1:19: batch.max_size: must be a whole number, not a section"),
    ("batch: {max_delay: 5}", "1:20: batch.max_delay: '5' has no unit: write 5ms or 5s"),
    ("batch: {max_delay: 0}", "1:20: batch.max_delay: '0' has no unit: write 0ms or 0s"),
    ("batch: {max_delay: -5ms}", "1:20: batch.max_delay: '-5ms' is negative: a duration is at least 0s"),
    (
        "batch: {max_delay: 5MS}",
        "1:20: batch.max_delay: '5MS': 'MS' is not a unit of a duration, these are: d, h, m, s, ms",
    ),
    ("batch: {max_delay: inf}", "1:20: batch.max_delay: 'inf' is not a duration: write a number and a unit, as in 5ms"),
    ("batch: {max_delay: 1:30}", "1:20: batch.max_delay: '1:30' is not a duration: write a number and a unit"),
    ("batch: {max_delay: ms}", "1:20: batch.max_delay: 'ms' is not a duration: write a number and a unit"),
    ("batch: {preferred_sizes: 8}", "1:26: batch.preferred_sizes: must be a list, as in [a, b]"),
    ("batch: {preferred_sizes: [8, x]}", "1:30: batch.preferred_sizes[1]: 'x' is not a whole number"),
    ("batch: adaptive", "1:8: batch: is a section, it holds mode, max_size"),
    ("cache: {memory: 256MB}", "1:17: cache.memory: '256MB': 'MB' is not a unit of a size, these are: TiB"),
    ("cache: {memory: 256M}", "did you mean 256MiB?"),
    ("cache: {memory: 0.3B}", "1:17: cache.memory: '0.3B' is not a whole number of bytes"),
    ("cache: {memory: 1000}", "1:17: cache.memory: '1000' has no unit: write 1000KiB or 1000MiB"),
    ("cache: {memory: -1B}", "1:17: cache.memory: '-1B' is negative: a size is at least 0B"),
    ("limits: {head: 1KiB}\nlimits: {head: 1B}", "2:1: `limits` stands here twice"),
    ("limits: {head: 1000B}", "1:16: limits.head: '1000B' is too small: at least 1KiB"),
    # addresses
    ("listen: 8080", "1:9: listen: '8080' has no host: write 127.0.0.1:8080 for this machine, 0.0.0.0:8080 for all"),
    ("listen: :8080", "1:9: listen: ':8080' has no host: write 127.0.0.1:8080"),
    ("listen: 127.0.0.1", "1:9: listen: '127.0.0.1' has no port: write HOST:PORT, as in 127.0.0.1:8080"),
    ("listen: '[::1]'", "1:9: listen: '[::1]' has no port: write HOST:PORT, as in [::1]:8080"),
    ("listen: ::1:8080", "1:9: listen: '::1:8080' is ambiguous: write an IPv6 address in brackets"),
    ("listen: h:65536", "1:9: listen: 'h:65536' has no port from 0 to 65535 after its last colon"),
    ("listen: http://h:80", "1:9: listen: 'http://h:80' is not HOST:PORT: leave out the scheme and the path"),
    ("listen: h:1\nadmin: h:1", "2:8: admin: h:1 is taken by `listen`: give each a port of its own"),
    ("listen: 0.0.0.0:9901", "1:1: admin: 127.0.0.1:9901 is taken by `listen`: give each a port of its own"),
    ("listen: localhost:9901", "1:1: admin: 127.0.0.1:9901 is taken by `listen`"),
    ("listen: 127.0.0.1:8000", "--upstream: http://127.0.0.1:8000 is Forebay itself: write where"),
    (
        'upstream: {authorization: "a\\nb"}',
        "1:27: upstream.authorization: must be one line of printable ASCII, as in `Bearer KEY`",
    ),
    ("redis: localhost:6379", "1:8: redis: an address without a scheme: write redis://"),
    ("redis: http://localhost", "1:8: redis: 'http' is not a scheme of Redis: write redis://"),
    (
        "cache: {tenant: credential}",
        "1:17: cache.tenant: 'credential' is not one of credentials, none, header:NAME; did",
    ),
    ("cache: {tenant: 'header:'}", "1:17: cache.tenant: 'header:' is not one of credentials, none, header:NAME"),
    ("cache: {tenant: 'header:a b'}", "1:17: cache.tenant: 'header:a b' is not one of"),
    # routes
    ("routes: {a: 1}", "1:9: routes: must be a list: each entry begins with `- `"),
    ("routes: [a]", "1:10: routes[0]: must be a section, as in `- id: name`"),
    ("routes: [{match: {}}]", "1:10: routes[0].id: is missing"),
    ("routes: [{id: a}]", "1:10: routes[0].match: is missing"),
    ("routes: [{id: default, match: {}}]", "1:15: routes[0].id: 'default' is the route of whatever fits no other"),
    ("routes: [{id: a/b, match: {}}]", "1:15: routes[0].id: 'a/b' is not 1 to 64 letters, digits, _, . and -"),
    ("routes: [{id: a, match: {path: v1}}]", "1:32: routes[0].match.path: 'v1' fits no path: paths begin with /"),
    (
        "routes: [{id: a, match: {path: '/v1?x=1'}}]",
        "1:32: routes[0].match.path: '/v1?x=1' fits no path: a query is no",
    ),
    ("routes: [{id: a, match: {path: /%20}}]", "1:32: routes[0].match.path: '/%20' is percent-encoded: write the path"),
    ("routes: [{id: a, match: {model: ''}}]", "1:33: routes[0].match.model: '' fits no model"),
    (
        "routes:\n- {id: a, match: {path: /a}}\n- {id: a, match: {path: /b}}",
        "3:8: routes[1].id: 'a' is the id of routes[0] too",
    ),
    (
        "routes:\n- {id: a, match: {path: /v2/*}}\n- {id: b, match: {path: /v2/models/*, model: m}}",
        "3:11: routes[1].match: is never reached: routes[0] (a) stands before it and fits all of it",
    ),
    (
        "routes: [{id: a, match: {}, cache: {memory: 1MiB}}]",
        "1:37: routes[0].cache.memory: is the same for all routes: it can only be set at the top",
    ),
    ("protocol: jsonmap", "1:11: protocol: 'jsonmap' is not one of auto, v2, v1, openai, tei, tgi, json_map; did you"),
    ("protocol: json_map", "1:11: protocol: json_map says where items are path by path: write it in a route"),
    ("rows: yes", "1:7: rows: 'yes' is not one of auto, true, prove, false"),
    ("routes: [{id: a, match: {}, protocol: tie}]", "1:39: routes[0].protocol: 'tie' is not one of auto, v2"),
    ("routes: [{id: a, match: {}, prefix: /a/}]", "1:37: routes[0].prefix: '/a/' is no beginning of a path: write it"),
    ("routes: [{id: a, match: {}, alias: v1}]", "1:36: routes[0].alias: 'v1' is no path: write one that a protocol"),
    (
        "routes: [{id: a, match: {}, prefix: /a, alias: /b}]",
        "1:37: routes[0].prefix: says nothing beside `alias`, which is the whole path: leave one of them out",
    ),
    (
        "routes: [{id: a, match: {}, protocol: json_map, alias: /b}]",
        "1:39: routes[0].protocol: json_map takes every path of its route: leave out `prefix` and `alias`",
    ),
    (
        "routes: [{id: a, match: {}, protocol: openai, alias: /v1/embedding}]",
        "1:54: routes[0].alias: openai knows no request to /v1/embedding; did you mean /v1/embeddings?",
    ),
    (
        "routes: [{id: a, match: {}, alias: /v2/models/m/infr}]",
        "1:36: routes[0].alias: no protocol knows a request to /v2/models/m/infr; did you mean /v2/models/NAME/infer?",
    ),
    (
        "routes: [{id: a, match: {path: /a/*}, prefix: /b}]",
        "1:47: routes[0].prefix: no path of this route begins with /b: `match.path` is /a/*",
    ),
    (
        "routes: [{id: a, match: {model: m}, protocol: json_map}]",
        "1:33: routes[0].match.model: fits no request, for those of a json_map name no model: leave it out",
    ),
    (
        "routes: [{id: a, match: {}, json_map: {items: /a, results: /b}}]",
        "1:29: routes[0].json_map: says nothing without `protocol: json_map`",
    ),
    (
        "routes: [{id: a, match: {path: /a*}, protocol: json_map, json_map: {batch_path: /b, items: /i, results: /r}}]",
        "1:18: routes[0].match: several paths cannot share the batch_path /b: write the one path",
    ),
    (
        "routes: [{id: a, match: {path: /b}, protocol: json_map, json_map: {batch_path: /b, items: /i, results: /r}}]",
        "1:80: routes[0].json_map.batch_path: is the path of single requests too: write the one that takes a list",
    ),
    (
        "routes: [{id: a, match: {}, protocol: json_map, json_map: {items: a, results: /b}}]",
        "1:67: routes[0].json_map.items: 'a' ",
    ),
    (
        "routes: [{id: a, match: {}, protocol: json_map, json_map: {items: /a}}]",
        "1:59: routes[0].json_map: `items` says nothing without `results`: write both, or neither for whole calls",
    ),
    ("batch: {preferred_sizes: [64]}", "1:26: batch.preferred_sizes: no batch holds more than max_size, which is 32"),
    (
        "batch: {preferred_sizes: [8]}\nroutes: [{id: a, match: {}, batch: {max_size: 4}}]",
        "2:29: routes[0].batch.preferred_sizes: no batch holds more than max_size, which is 4 here",
    ),
    # YAML
    ("batch: {max_size: 1", "1:20: not YAML: while parsing a flow mapping, expected ',' or '}'"),
    ("routes: [{id: a, match: {path: *}}]", "a value that begins with * is an alias in YAML: put it in quotes"),
    ("routes: [{id: a, match: {path: *models}}]", "1:32: a value that begins with * is an alias in YAML: put it in"),
    ("\tmode: on", "1:1: not YAML: while scanning for the next token, found character '\\t'"),
    ("mode: on\n---\nmode: on", "2:1: a second document begins here: the file must be one"),
    ("mode: \x07", "1:7: a character that YAML does not allow"),
    ("- a", "1:1: the file must hold settings"),
    ("mode: !!python/name:os.system x", "1:7: the tag tag:yaml.org,2002:python/name:os.system has no meaning here"),
    ("routes: &a [*a]", "1:9: this alias stands inside of what it repeats"),
    ("[" * 20000, "1:1: nested too deeply to be read"),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES, ids=[said[:40] for _, said in MISTAKES])
def test_a_mistake_is_named_where_it_stands_with_what_to_write_instead(tmp_path: Path, text: str, said: str) -> None:
    """Whoever gets a message can mend the file without reading the manual."""
    found = [line for line in mistakes(tmp_path, text) if said in line]
    assert found, mistakes(tmp_path, text)
    if said[0].isdigit():
        assert found[0].startswith(f"forebay.yaml:{said}")


TARGETS = [
    ("127.0.0.1:8000", "'127.0.0.1:8000' has no scheme: write 'http://127.0.0.1:8000'"),
    ("htp://h:1", "'htp://h:1' is not served: a target begins with http:// or https://; did you mean http://?"),
    ("http://h:1/v2", "'http://h:1/v2' has a path or a query: requests bring their own, write http://h:1"),
    ("http://h:1?a=b", "'http://h:1?a=b' has a path or a query: requests bring their own, write http://h:1"),
    ("http://h:99999", "'http://h:99999' is not a URL: write http://HOST:PORT, the port from 1 to 65535"),
    ("http://h:0", "'http://h:0' is not a URL"),
    ("http://h:", "'http://h:' is not a URL"),
    ("http://", "'http://' is not a URL"),
    ("http://[::1", "'http://[::1' is not a URL"),
    ("http://a b", "'http://a b' is not a URL"),
    ("http://u:p@h", "'http://***@h' holds credentials, which are the callers' to send: leave them out"),
]


@pytest.mark.parametrize(("url", "said"), TARGETS)
def test_a_url_that_cannot_be_a_model_server_is_refused(url: str, said: str) -> None:
    """A mistyped upstream is found before the first request."""
    with pytest.raises(Mistakes) as caught:
        load(None, {}, {"upstream": url})
    assert str(caught.value).startswith(f"--upstream: {said}")


@pytest.mark.parametrize("match", ["'*'", "/b*", "/b/c/*", "'*/v2/*'", "/*"])
def test_a_prefix_may_begin_some_path_of_its_route(tmp_path: Path, match: str) -> None:
    """A route that may have such a path can say `prefix`, wherever its `*` stand."""
    (route,) = read(tmp_path, f"upstream: http://u\nroutes: [{{id: a, match: {{path: {match}}}, prefix: /b/c}}]").routes
    assert route.prefix == "/b/c"


def test_what_could_not_be_read_makes_no_second_mistake(tmp_path: Path) -> None:
    """A pointer that is none counts as written: nobody is told to write it."""
    text = "routes: [{id: a, match: {}, protocol: json_map, json_map: {items: /a, results: b}}]"
    assert [line for line in mistakes(tmp_path, text) if "json_map" in line] == [
        "forebay.yaml:1:80: routes[0].json_map.results: 'b' is no JSON pointer, which begins with /: write '/b'"
    ]


def test_several_targets_are_refused_for_now(tmp_path: Path) -> None:
    """Nobody believes that a second target takes part."""
    found = mistakes(tmp_path, "mode: on", {"FOREBAY_UPSTREAM": "http://a,http://b"}, upstream="http://a,http://b")
    assert found == ["--upstream: only one target is served for now: write the one"]


def test_every_mistake_is_named_at_once_in_order(tmp_path: Path) -> None:
    """One look at the messages is enough to mend a whole file; one mistake makes no other."""
    text = """\
listen: 127.0.0.1
admin: 127.0.0.1:8080
batchh: {}
batch:
  max_size: 0
  preferred_sizes: [64]
cache: {ttl: 5, memory: x}
routes:
  - id: a
    match: {path: v1}
  - id: b
    match: {path: /v2}
    batch: {max_delay: -1s, preferred_sizes: [99]}
    modes: off
"""
    found = mistakes(tmp_path, text, {"FOREBAY_LIMITS__HEAD": "1"}, **{"batch.max_queue": "0"})
    assert [re.split(r": (?=[^0-9])", line)[0] for line in found] == [
        "forebay.yaml:1:9",
        "forebay.yaml:3:1",
        "forebay.yaml:5:13",
        "forebay.yaml:7:14",
        "forebay.yaml:7:25",
        "forebay.yaml:10:19",
        "forebay.yaml:13:24",
        "forebay.yaml:14:5",
        "--max-queue",
        "FOREBAY_LIMITS__HEAD",
    ]


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    """A wrong path, a folder, a binary: no traceback."""
    (tmp_path / "binary.yaml").write_bytes(b"mode: on\nredis: \xff")
    for name, said in (
        ("nowhere.yaml", "nowhere.yaml: there is no such file"),
        ("", ": cannot be read: Is a directory"),
        ("binary.yaml", "binary.yaml:2:8: not UTF-8"),
    ):
        with pytest.raises(Mistakes) as caught:
            load(tmp_path / name, {}, {})
        assert str(caught.value).endswith(said)


@pytest.mark.parametrize(
    ("written", "revision"),
    [
        ("2026-11-30", "2026-11-30"),
        ("1.10", "1.10"),
        ("yes", "yes"),
        ("010", "010"),
        ('"x"', "x"),
        ("'~'", "~"),
        ("a b", "a b"),
    ],
)
def test_text_stays_the_text_that_was_written(tmp_path: Path, written: str, revision: str) -> None:
    """A revision of 1.10 is not 1.1, and a date stays what it looked like."""
    settings = read(tmp_path, f"routes: [{{id: a, match: {{}}, model: {{revision: {written}}}}}]")
    assert settings.routes[0].model.revision == revision


def test_words_are_words_in_quotes_or_not(tmp_path: Path) -> None:
    """`on`, `off` and `none` need no quotes, and templates that quote everything do no harm."""
    settings = read(tmp_path, "mode: off\nredis: none\nupstream: {slots: auto}\nbatch: {mode: 'off', max_size: '8'}")
    assert (settings.mode, settings.redis, settings.upstream.slots) == (Mode.OFF, None, None)
    assert (settings.batch.mode, settings.batch.max_size) == (BatchMode.OFF, 8)


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "~", "batch:\nroutes:\n", "\ufeffmode: on\n", "redis:\n", "batch: {}"]
)
def test_what_is_left_out_has_its_default(tmp_path: Path, text: str) -> None:
    """An empty file, an empty section and a section whose lines are all comments say nothing."""
    assert read(tmp_path, text) == load(None, {}, {"upstream": URL})


def test_an_alias_says_the_same_thing_again_and_stays_apart(tmp_path: Path) -> None:
    """A variable that overrides one place of an anchor leaves the other places as they were written."""
    text = "batch: &b {max_size: 4, max_delay: 1ms}\nroutes: [{id: a, match: {}, batch: *b}]"
    settings = read(tmp_path, text, {"FOREBAY_BATCH__MAX_SIZE": "8"})
    assert (settings.batch.max_size, settings.routes[0].batch.max_size) == (8, 4)


def test_a_file_of_aliases_of_aliases_costs_nothing(tmp_path: Path) -> None:
    """A few lines of YAML cannot be made to fill the memory."""
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 60)]
    assert len(mistakes(tmp_path, "\n".join(lines))) == 60


def test_a_route_has_what_it_says_over_what_is_said_at_the_top(tmp_path: Path) -> None:
    """A route changes one thing and keeps the rest of the defaults that the file gives."""
    text = """\
mode: off
cache: {ttl: 1m, tenant: none}
batch: {max_size: 8, mode: fixed}
routes:
  - {id: a, match: {path: /a}, mode: on, cache: {ttl: 2m}, batch: {max_delay: 1ms}}
  - {id: b, match: {path: /b*, model: "m*"}}
"""
    settings = read(tmp_path, text, {"FOREBAY_BATCH__MAX_SIZE": "9"})
    first, second = settings.routes
    assert (first.mode, first.cache.ttl, first.cache.tenant) == (Mode.ON, 120.0, "none")
    assert (first.batch.max_size, first.batch.mode, first.batch.max_delay) == (9, BatchMode.FIXED, 0.001)
    assert (second.mode, second.cache, second.batch) == (Mode.OFF, settings.cache, settings.batch)
    assert repr(settings.table()) == "<Routes a, b, default>"
    assert settings.default_route.mode is Mode.OFF


def test_ports_of_zero_are_never_the_same_port(tmp_path: Path) -> None:
    """Two listeners may each ask for any free port."""
    assert read(tmp_path, "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0").admin == "127.0.0.1:0"


SECRETS = [
    f"cache: {{proof_key: [{SECRET}]}}",
    f"cache: {{proof_key: {{{SECRET}: 1}}}}",
    f"cache: {{proof_key: {SECRET * 20}}}",
    f"admin_token: [{SECRET}]",
    f"redis: '://:{SECRET}@h'",
    f"redis: ':{SECRET}@h'",
    f"redis: htp://u:{SECRET}@h",
    f"redis: redis://u:{SECRET}/x@h",
    f"redis: redis://u:{SECRET}@h:99999",
    f"listen: redis://u:{SECRET}@h",
    f"upstream: http://u:{SECRET}@h",
    f"upstream: u:{SECRET}@h",
    f"upstream: http://u:{SECRET}/@h/",
    f"upstream: http://h/?api_key={SECRET}",
    f"cache: {{proof_key: {SECRET}\n",
    f"cache: {{proof_key: '{SECRET}\n",
    f"cache: {{proof_key: *{SECRET}}}",
    f"cache: {{prof_key: {SECRET}}}",
    f"cach: {{proof_key: {SECRET}}}",
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_message_never_shows_a_secret(tmp_path: Path, text: str) -> None:
    """The log of a deployment that does not start can be shown to anybody."""
    path = tmp_path / "forebay.yaml"
    path.write_text(text)
    with pytest.raises(Mistakes) as caught:
        load(path, {"FOREBAY_ADMN_TOKEN": SECRET, "FOREBAY_REDIS_PASSWORD": SECRET}, {})
    assert SECRET not in str(caught.value)


def test_the_configuration_can_be_shown_to_anybody(tmp_path: Path) -> None:
    """/config and a log of the settings hold no key and no password."""
    text = f"redis: rediss://user:{SECRET}@h:1/2\nadmin_token: {SECRET}\ncache: {{proof_key: {SECRET}}}\n"
    settings = read(tmp_path, text + "routes: [{id: a, match: {}}]")
    shown = as_dict(settings)
    assert (shown["redis"], shown["admin_token"], shown["cache"]["proof_key"]) == ("rediss://***@h:1/2", "***", "***")
    assert "memory" in shown["cache"]
    assert "memory" not in shown["routes"][0]["cache"]
    assert SECRET not in f"{shown} {settings!r}"
    assert repr(settings).startswith("<Settings {'listen': '127.0.0.1:8080'")


amounts = st.integers(0, 10**6)


@no_deadline
@given(
    delay=st.floats(0, 1e6).map(lambda seconds: round(seconds, 7)),
    size=st.integers(0, 1 << 50),
    sizes=st.lists(st.integers(1, 32)),
    slots=st.none() | st.integers(1, 10**9),
    body=st.none() | st.integers(0, 1 << 40),
    tenant=st.sampled_from(["none", "credentials", "header:X-Tenant"]),
    pattern=st.text("/ab*-_.:'\"#{}[]&!|>%@`, ", max_size=8).map(
        lambda text: f"/{text}".replace("#", "").replace("%", "")
    ),
)
def test_what_is_shown_can_be_written_and_means_the_same(
    *,
    tmp_path_factory: pytest.TempPathFactory,
    delay: float,
    size: int,
    sizes: list[int],
    slots: int | None,
    body: int | None,
    tenant: str,
    pattern: str,
) -> None:
    """/config can be pasted into a file: every value is read back as it was."""
    default = load(None, {}, {"upstream": URL})
    settings = dataclasses.replace(
        default,
        upstream=dataclasses.replace(default.upstream, slots=slots),
        cache=dataclasses.replace(default.cache, memory=Bytes(size), tenant=tenant),
        batch=dataclasses.replace(default.batch, max_delay=Seconds(delay), preferred_sizes=tuple(sizes)),
        limits=dataclasses.replace(default.limits, body=None if body is None else Bytes(body)),
    )
    route = dataclasses.replace(
        settings.default_route, id="a", match=dataclasses.replace(settings.default_route.match, path=pattern)
    )
    settings = dataclasses.replace(settings, routes=(route,))
    path = tmp_path_factory.getbasetemp() / "shown.yaml"
    path.write_text(yaml.safe_dump(as_dict(settings), sort_keys=False, allow_unicode=True))
    assert load(path, {}, {}) == settings


@no_deadline
@given(st.text() | st.text("{}[]:,-*&!|>'\"%@#\n\t batchmodeon0159", max_size=60))
def test_no_file_is_a_traceback(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Whatever a file holds, it is a configuration or a list of mistakes with places."""
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        load(path, {}, {"upstream": URL})
    except Mistakes as caught:
        lines = text.count("\n") + text.count("\r") + len(re.findall("[\x85\u2028\u2029]", text)) + 1
        assert all(1 <= mistake.place.line <= lines + 1 and mistake.place.column >= 1 for mistake in caught.found)


@no_deadline
@given(st.floats(0, 1e9), st.integers(0, 1 << 60))
def test_durations_and_sizes_are_read_as_they_are_written(seconds: float, size: int) -> None:
    """A value that Forebay shows is exactly the value that it uses."""
    seconds = round(seconds, 9)
    assert values.read(Seconds, values.write(Seconds, seconds)) == seconds
    assert values.read(Bytes, values.write(Bytes, size)) == size


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Seconds, 0.005, "5ms"),
        (Seconds, 0.0, "0s"),
        (Seconds, 90.0, "90s"),
        (Seconds, 3600.0, "1h"),
        (Seconds, 1.5, "1500ms"),
        (Seconds, 0.0000005, "0.5us"),
        (Bytes, 0, "0B"),
        (Bytes, 1 << 20, "1MiB"),
        (Bytes, 1500, "1500B"),
        (float, 0.5, "0.5"),
        (bool, True, "true"),
        (Mode, Mode.OFF, "off"),
    ],
)
def test_values_are_shown_as_a_person_would_write_them(kind: Any, value: Any, text: str) -> None:
    """`5ms` comes back as `5ms`."""
    assert values.write(kind, value) == text
    assert values.read(kind, text) == value


@pytest.mark.parametrize(
    ("text", "seconds"), [("1.5s", 1.5), ("2 m", 120.0), ("7µs", 7e-6), ("1d", 86400.0), ("0s", 0.0)]
)
def test_durations_may_be_written_in_several_ways(text: str, seconds: float) -> None:
    """A fraction, a blank before the unit and the letter µ are understood."""
    assert values.read(Seconds, text) == seconds


@dataclass(frozen=True, slots=True)
class Inner:
    rate: float = setting(0.5, "A rate.", minimum=0.25)
    loud: bool = setting(False, "Loud.")


@dataclass(frozen=True, slots=True)
class Outer:
    inner: Inner = setting(Inner(), "Inside.")
    names: tuple[str, ...] = setting(("a",), "Names.")
    even: int = setting(2, "An even number.")

    def __post_init__(self) -> None:
        if self.even % 2:
            raise ValueError(f"even is {self.even}, which is odd")


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("inner: {rate: 0.25, loud: true}\nnames: [b, c]", Outer(Inner(0.25, loud=True), ("b", "c"))),
        ("names: []", Outer(names=())),
        ("inner: {rate: 1}", Outer(Inner(1.0))),
        (
            "inner: {rate: 0.2, loud: yes}",
            ["1:15: inner.rate: '0.2' is too small: at least 0.25", "1:26: inner.loud: 'yes' is"],
        ),
        ("inner: {rate: nan}", ["1:15: inner.rate: 'nan' is not a number"]),
        ("even: 3", ["1:1: even is 3, which is odd"]),
        ("names: [a, {b: c}]", ["1:12: names[1]: must be a text, not a section"]),
    ],
)
def test_any_settings_are_read_by_their_annotations(text: str, outcome: Outer | list[str]) -> None:
    """A layer that declares a setting has it in the file, checked, without another line of code."""
    tree, wrong = config_tree.parse(text, "f")
    assert tree is not None
    assert not wrong
    reader = Reader(Outer, {})
    found = reader.section(tree, "", base=Outer())
    if isinstance(outcome, Outer):
        assert (found, reader.mistakes) == (outcome, [])
    else:
        assert [
            str(mistake)[2 : 2 + len(said)] for mistake, said in zip(reader.mistakes, outcome, strict=True)
        ] == outcome


def test_the_reference_and_the_default_file_are_those_of_the_code() -> None:
    """docs/config.md and config/default.yaml tell the truth; `make docs` writes them."""
    assert (ROOT / config_docs.REFERENCE).read_text() == config_docs.reference()
    assert (ROOT / config_docs.DEFAULTS).read_text() == config_docs.defaults()


def test_the_default_file_says_what_applies_without_it() -> None:
    """Copying config/default.yaml changes nothing, and its example works when it is uncommented."""
    path = ROOT / config_docs.DEFAULTS
    assert load(path, {}, {}) == load(None, {}, {"upstream": config_docs.TARGET})


def test_the_example_in_the_default_file_works(tmp_path: Path) -> None:
    """Taking the `#` off the example gives the routes that it talks of."""
    lines = (ROOT / config_docs.DEFAULTS).read_text().splitlines()
    start = lines.index("# routes:")
    text = "\n".join(lines[:start] + [line.removeprefix("# ") for line in lines[start:]])
    routes = read(tmp_path, text).routes
    assert [(route.id, route.mode, route.batch.max_delay) for route in routes] == [
        ("rerank", Mode.ON, 0.002),
        ("private", Mode.OFF, 0.005),
    ]


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_file_is_without_mistakes(path: Path) -> None:
    """Files under config/ can be used as they are; the container's is told the upstream by its deployment."""
    told = {"FOREBAY_UPSTREAM": config_docs.TARGET} if path.name == "container.yaml" else {}
    usual = {"tei.yaml": "http://127.0.0.1:3000"}  # where such a server is unless it is told otherwise
    assert load(path, told, {}).upstream.targets == (usual.get(path.name, config_docs.TARGET),)


def test_every_setting_says_what_it_is_for() -> None:
    """No row of docs/config.md is without its meaning."""
    for path, leaf in leaves(Settings):
        assert len(leaf.doc) > 10, path
        assert leaf.doc.endswith("."), path
