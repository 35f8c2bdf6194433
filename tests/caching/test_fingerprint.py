"""Promises of keys and signatures: what may share an answer or a batch, and what never does."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.caching.fingerprint import CREDENTIALS, DEFAULT_PROOF_KEY, IGNORED, Keys, Scope, Tenant, TenantKind
from proxy.terms import Headers, Identity

WEIGHTS = Identity(("1",), 1_700_000_000.0, "", known=True)
HEAD: dict[str, Any] = {
    "route": "default",
    "protocol": "v2",
    "path": "/v2/models/embed/infer",
    "identity": WEIGHTS,
    "query": b"",
    "headers": ((b"Host", b"a"), (b"Content-Type", b"application/json"), (b"X-Variant", b"7")),
}
BY_CREDENTIALS = Tenant(TenantKind.CREDENTIALS)
ANYBODY = Tenant(TenantKind.NONE)
BY_TEAM = Tenant.parse("header:X-Team")


def scope(tenant: Tenant = BY_CREDENTIALS, **head: Any) -> Scope:
    return Keys(DEFAULT_PROOF_KEY, tenant).scope(**(HEAD | head))


def with_fields(*fields: tuple[bytes, bytes]) -> Headers:
    headers: Headers = HEAD["headers"]
    return headers + fields


# Few letters and short words, so that two drawn heads are often equal, or differ only in where a field ends.
words = st.text("ab", max_size=2)
octets = words.map(str.encode)
names = st.sampled_from(
    [b"X-A", b"x-a", b"X-B", b"Accept", b"User-Agent", b"X-Request-Id", b"Authorization", b"Cookie"]
)
heads: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "route": words,
        "protocol": words,
        "path": words,
        "identity": st.builds(
            Identity, st.lists(words, max_size=2).map(tuple), st.sampled_from([0.0, 1.5]), words, st.booleans()
        ),
        "query": octets,
        "headers": st.lists(st.tuples(names, octets), max_size=3).map(tuple),
    }
)
tenants = st.sampled_from([BY_CREDENTIALS, ANYBODY, Tenant.parse("header:x-a"), Tenant.parse("header:X-Request-Id")])


def credentials_of(head: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    named = [(name.lower(), value) for name, value in head["headers"]]
    return sorted((pair for pair in named if pair[0] in CREDENTIALS), key=lambda pair: pair[0])


def meaning(head: dict[str, Any], tenant: Tenant) -> object:
    """All that a key may depend on, plainly: the reference for the encoding."""
    named = [(name.lower(), value) for name, value in head["headers"]]
    others = [pair for pair in named if pair[0] not in CREDENTIALS and pair[0] not in IGNORED]
    who: object = None
    if tenant.kind is TenantKind.CREDENTIALS:
        who = credentials_of(head)
    if tenant.kind is TenantKind.HEADER:
        who = [pair for pair in named if pair[0] == tenant.header]
    rest = {name: value for name, value in head.items() if name != "headers"}
    return rest, who, sorted(others, key=lambda pair: pair[0])


@given(one=heads, other=heads, data=st.data(), tenant=tenants)
def test_keys_are_equal_exactly_when_their_meaning_is(
    one: dict[str, Any], other: dict[str, Any], data: st.DataObject, tenant: Tenant
) -> None:
    """No two requests that could have different answers share a key, and none that could not miss each other."""
    for field in data.draw(st.sets(st.sampled_from(sorted(one)))):
        other = other | {field: one[field]}
    keys = Keys(DEFAULT_PROOF_KEY, tenant)
    same = meaning(one, tenant) == meaning(other, tenant)
    assert (keys.scope(**one).key == keys.scope(**other).key) == same
    joins = same and credentials_of(one) == credentials_of(other)
    assert (keys.scope(**one).signature == keys.scope(**other).signature) == joins


@given(data=st.data(), tenant=tenants)
def test_what_is_remembered_is_what_would_be_computed(data: st.DataObject, tenant: Tenant) -> None:
    """A request gets the same key whether Forebay has just started or has seen a thousand heads."""
    keys = Keys(DEFAULT_PROOF_KEY, tenant)
    keys.REMEMBERED = 2  # type: ignore[misc]  # so that a few heads already push each other out
    for head in data.draw(st.lists(heads, min_size=2, max_size=12)):
        assert keys.scope(**head) == Keys(DEFAULT_PROOF_KEY, tenant).scope(**head)


@given(one=st.tuples(octets, octets), other=st.tuples(octets, octets))
def test_items_share_an_address_exactly_when_they_are_equal(
    one: tuple[bytes, bytes], other: tuple[bytes, bytes]
) -> None:
    """Where the shared fields end and the item begins can never be taken for something else."""
    keys = Keys(DEFAULT_PROOF_KEY, BY_CREDENTIALS)
    head = keys.scope(**HEAD)
    mine, theirs = keys.fingerprint(head, *one), keys.fingerprint(head, *other)
    assert (mine.address == theirs.address) == (one == other)
    assert (mine.proof == theirs.proof) == (one == other)
    assert (keys.signature(head, one[0]) == keys.signature(head, other[0])) == (one[0] == other[0])


@given(shared=st.binary(max_size=300), items=st.lists(st.binary(max_size=300), max_size=5))
def test_an_item_has_one_fingerprint_however_it_travels(shared: bytes, items: list[bytes]) -> None:
    """An item of a large call is a hit when it is asked for alone, and the other way round."""
    keys = Keys(DEFAULT_PROOF_KEY, BY_CREDENTIALS)
    head = keys.scope(**HEAD)
    assert keys.fingerprints(head, shared, items) == [keys.fingerprint(head, shared, item) for item in items]


@pytest.mark.parametrize(
    "name",
    b"Host User-Agent Accept-Encoding Date Content-Length Transfer-Encoding Keep-Alive TE Expect "
    b"traceparent tracestate X-B3-TraceId x-datadog-trace-id X-Request-ID X-Correlation-Id Idempotency-Key "
    b"Via Forwarded X-Forwarded-For X-Forwarded-Proto X-Real-IP X-Request-Timeout-Ms Grpc-Timeout "
    b"Forebay-Cache forebay-anything Inference-Header-Content-Length X-Stainless-Retry-Count".split(),
)
def test_headers_of_the_ignore_list_share_answers(name: bytes) -> None:
    """Requests that differ in a trace, a request id, a deadline or in their framing are hits for each other."""
    assert scope(headers=with_fields((name, b"1"))) == scope(headers=with_fields((name, b"2"))) == scope()
    assert not BY_CREDENTIALS.covers(name)


@given(name=st.from_regex(rb"[!#-'*+.0-9A-Z^-z|~-]{1,12}", fullmatch=True), values=st.sets(octets, min_size=2))
def test_every_other_header_tells_answers_apart(name: bytes, values: set[bytes]) -> None:
    """A header that Forebay has never heard of can change an answer, so it is part of key and signature."""
    if name.lower() in IGNORED or name.lower() in CREDENTIALS:
        return
    scopes = [scope(tenant, headers=with_fields((name, value))) for value in values for tenant in (ANYBODY, BY_TEAM)]
    assert len({each.key for each in scopes}) == len({each.signature for each in scopes}) == len(scopes)
    assert ANYBODY.covers(name)


@pytest.mark.parametrize("name", [b"baggage", b"X-Forwarded-Prefix", b"Cache-Control", b"Range", b"Accept", b"Origin"])
def test_headers_near_the_ignore_list_are_not_on_it(name: bytes) -> None:
    """What steers a mesh or the form of an answer tells answers apart."""
    assert scope(headers=with_fields((name, b"1"))).key != scope(headers=with_fields((name, b"2"))).key


def test_order_and_case_of_header_names_do_not_matter() -> None:
    """Clients that write the same fields in another order or case share answers."""
    for headers in itertools.permutations(HEAD["headers"]):
        shouted = tuple((name.upper(), value) for name, value in headers)
        assert scope(headers=headers) == scope(headers=shouted) == scope()


def test_the_order_of_a_repeated_header_matters() -> None:
    """`X-Stage: a` before `X-Stage: b` may mean something else than the reverse, and than `a, b`."""
    a, b = (b"X-Stage", b"a"), (b"x-stage", b"b")
    both = (b"X-Stage", b"a, b")
    assert len({scope(headers=with_fields(*fields)).key for fields in ((a, b), (b, a), (both,), (a, a, b))}) == 4
    assert scope(headers=(a, (b"X-Other", b""), b)) == scope(headers=((b"X-Other", b""), a, b))


@pytest.mark.parametrize(
    "name",
    b"Authorization Cookie X-Api-Key api-key Proxy-Authorization X-Forwarded-Client-Cert X-Auth-Request-User".split(),
)
def test_a_credential_enters_a_key_by_the_tenant_only(name: bytes) -> None:
    """By default nobody gets from the cache what the backend might refuse him; a gateway's check can stand for it."""
    mine, theirs, nobody = (with_fields((name, b"mine")), with_fields((name, b"theirs")), HEAD["headers"])
    assert len({scope(headers=headers).key for headers in (mine, theirs, nobody)}) == 3
    assert len({scope(ANYBODY, headers=headers).key for headers in (mine, theirs, nobody)}) == 1
    assert len({scope(BY_TEAM, headers=headers).key for headers in (mine, theirs, nobody)}) == 1
    assert [tenant.covers(name) for tenant in (BY_CREDENTIALS, ANYBODY, BY_TEAM)] == [True, False, False]
    for tenant in (BY_CREDENTIALS, ANYBODY, BY_TEAM):  # a batch borrows nobody's credential
        keys = Keys(DEFAULT_PROOF_KEY, tenant)
        scopes = [scope(tenant, headers=headers) for headers in (mine, theirs, nobody)]
        assert len({keys.signature(each, b"shared") for each in scopes}) == 3


def test_a_tenant_may_be_named_by_any_header() -> None:
    """`tenant: header:X` keeps teams apart, also where X is a credential or is otherwise ignored."""
    for name in (b"X-Team", b"Authorization", b"X-Forwarded-For"):
        tenant = Tenant.parse(f"header:{name.decode()}")
        fields = [(), ((name, b""),), ((name, b"1"),), ((name.upper(), b"2"),), ((name, b"1"), (name, b"2"))]
        assert len({scope(tenant, headers=with_fields(*field)).key for field in fields}) == len(fields)
        assert tenant.covers(name)


def test_no_credential_is_ignored() -> None:
    """A credential that stood on the ignore list too would let callers borrow each other's."""
    assert not CREDENTIALS.exact & IGNORED.exact
    assert not [name for name in CREDENTIALS.exact if name in IGNORED]
    assert not [name for name in IGNORED.exact if name in CREDENTIALS]


def test_a_header_that_connection_takes_out_does_not_pass_for_one_that_arrives() -> None:
    """Nobody can store the answer to a request without a header under the key of one with it."""
    taken_out = scope(headers=with_fields((b"Connection", b"close, X-Variant")))
    assert taken_out.key != scope().key
    assert taken_out.key != scope(headers=tuple(pair for pair in HEAD["headers"] if pair[0] != b"X-Variant")).key
    assert taken_out == scope(headers=with_fields((b"connection", b"x-variant"), (b"Connection", b"keep-alive")))
    assert scope(headers=with_fields((b"Connection", b"keep-alive, TE, Upgrade"))) == scope()
    assert scope(headers=with_fields((b"Connection", b"Inference-Header-Content-Length"))).key != scope().key


def test_another_proof_key_makes_other_addresses_and_proofs() -> None:
    """Forebays that do not share a proof key do not share entries."""
    made = []
    for key in (DEFAULT_PROOF_KEY, b"secret"):
        keys = Keys(key, BY_CREDENTIALS)
        made.append(keys.fingerprint(keys.scope(**HEAD), b"shared", b"item"))
    assert made[0].address != made[1].address
    assert made[0].proof != made[1].proof


def test_keys_do_not_change_by_accident() -> None:
    """Replicas and restarts of one release find each other's entries; what changes keys changes the schema too."""
    keys = Keys(DEFAULT_PROOF_KEY, BY_CREDENTIALS)
    head = keys.scope(**(HEAD | {"headers": with_fields((b"Authorization", b"Bearer 1"))}))
    address, proof = keys.fingerprint(head, b"shared", b"item")
    assert (address.hex(), proof.hex()) == ("a913fdc71d8f0f835ff3d1b5b84eef29", "6d0e0b2191b587e420cdb47520432c85")


def test_one_spelling_of_a_path_is_not_another() -> None:
    """What the backend could answer differently is keyed differently."""
    assert scope(path="/v2/models/embed/infer").key != scope(path="/v2/models/embed/versions/1/infer").key


def test_a_name_that_is_no_text_still_has_a_key() -> None:
    """A path with broken UTF-8 is keyed like any other."""
    assert scope(path="\udcff").key != scope(path="\udcfe").key


def test_what_is_remembered_is_bounded_and_heads_that_repeat_stay() -> None:
    """Heads that never repeat cost no memory, and do not push out those that do."""
    keys = Keys(DEFAULT_PROOF_KEY, BY_CREDENTIALS)
    mine = keys.scope(**HEAD)
    for i in range(4000):
        keys.scope(**(HEAD | {"query": b"%d" % i}))
        assert keys.scope(**HEAD) is mine
    assert repr(keys) == "<Keys tenant=credentials, 936 scopes remembered>"
    large = HEAD | {"headers": with_fields((b"X-Large", b"x" * Keys.LARGEST_REMEMBERED))}
    assert keys.scope(**large) == keys.scope(**large)
    assert keys.scope(**large) is not keys.scope(**large)
    for i in range(4000):
        keys.scope(**(HEAD | {"headers": ((b"X-%d" % i, b""),)}))
    assert len(keys._dropped) <= keys._dropped.LARGEST


@pytest.mark.parametrize("text", ["", "Credentials", "header", "header:", "header:X Y", "claim:sub", "none\n"])
def test_a_wrong_tenant_is_told_what_may_stand_there(text: str) -> None:
    """A mistake in `cache.tenant` is a sentence with the remedy."""
    with pytest.raises(ValueError, match="write `credentials`, `none` or `header:NAME`"):
        Tenant.parse(text)


def test_no_key_shows_in_a_repr() -> None:
    """A log line or a debugger shows whose answers are told apart, never by which secret."""
    assert repr(Keys(b"hidden", Tenant.parse("header: X-Team"))) == "<Keys tenant=header:x-team, 0 scopes remembered>"
