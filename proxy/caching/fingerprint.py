"""From a call and its head to addresses in the response cache, and to the signature under which items join.

Invariants
    Two requests share an address with its proof only if everything that can change their answer is equal:
    tenant, route, protocol, path, weights, query string, every header but the published ignore
    list, the body's shared fields and the item. No two different materials encode to the same bytes:
    every field carries its type and its length.
    Credentials enter a key only through the tenant, a signature always: no batch borrows them.
    The order of different header names never matters, the order of one name's repetitions always.
    What is remembered between requests is bounded, in number and in bytes.

Knows nothing of bodies (codecs hand over canonical bytes), clocks and stores.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

import xxhash

from proxy.terms import Fingerprint, Headers, Identity

DEFAULT_PROOF_KEY: Final = b"forebay: a public key, so that replicas share; it hides nothing"
"""Stands where no `cache.proof_key` is configured: tells collisions apart, stops no forger."""

_SCHEMA: Final = b"forebay key 2"


@dataclass(frozen=True, slots=True)
class Names:
    """A list of header names, in lower case, some of them by their first letters. Asked with `in`."""

    exact: frozenset[bytes]
    prefixes: tuple[bytes, ...]

    def __contains__(self, name: bytes) -> bool:
        return name in self.exact or name.startswith(self.prefixes)


IGNORED: Final = Names(
    exact=frozenset(
        # framing: Forebay frames anew
        b"content-length expect inference-header-content-length "
        # hop-by-hop; the names that `Connection` lists are looked at all the same
        b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade http2-settings "
        # who asks by which software; the backend is always asked for `identity`
        b"host user-agent accept-encoding date "
        # trace
        b"traceparent tracestate b3 uber-trace-id sentry-trace grpc-trace-bin x-trace-id "
        b"x-cloud-trace-context x-amzn-trace-id x-ot-span-context "
        # request id
        b"x-request-id request-id x-correlation-id correlation-id x-client-request-id x-amzn-requestid "
        b"x-amz-cf-id cf-ray idempotency-key x-idempotency-key "
        # forwarding: the way that a request came
        b"via forwarded x-forwarded-for x-forwarded-host x-forwarded-port x-forwarded-proto x-forwarded-scheme "
        b"x-forwarded-server x-original-forwarded-for x-real-ip x-client-ip true-client-ip cf-connecting-ip cdn-loop "
        b"x-envoy-external-address x-envoy-internal x-envoy-attempt-count x-request-start x-queue-start "
        # deadlines
        b"x-request-timeout-ms x-request-timeout request-timeout grpc-timeout "
        b"x-envoy-expected-rq-timeout-ms x-envoy-upstream-rq-timeout-ms".split()
    ),
    prefixes=(
        b"forebay-",
        b"x-b3-",
        b"x-datadog-",
        b"x-stainless-",  # what the OpenAI clients say of themselves, the count of the try among it
    ),
)
"""Request headers that enter neither key nor signature. Every other one does: a header can change an answer.

`baggage` is not among them: meshes choose a model version by it.
"""

CREDENTIALS: Final = Names(
    exact=frozenset(
        b"authorization proxy-authorization cookie "
        b"api-key apikey x-api-key x-goog-api-key ocp-apim-subscription-key x-functions-key "
        b"x-auth-token x-access-token private-token x-vault-token x-amz-security-token "
        # what a gateway says of the caller after it has looked at the credentials
        b"x-forwarded-user x-forwarded-email x-forwarded-groups x-forwarded-preferred-username "
        b"x-forwarded-access-token x-forwarded-client-cert x-client-cert x-ssl-client-cert x-remote-user remote-user "
        b"x-goog-iap-jwt-assertion cf-access-jwt-assertion".split()
    ),
    prefixes=(b"x-auth-request-", b"x-amzn-oidc-", b"x-goog-authenticated-user-", b"x-ms-client-principal"),
)
"""Request headers that say who asks: in the key by way of the tenant only."""


class TenantKind(Enum):
    """What tells tenants apart: `cache.tenant`."""

    CREDENTIALS = "credentials"
    NONE = "none"
    HEADER = "header"


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose answers are whose. header: in lower case, for `HEADER` only."""

    kind: TenantKind
    header: bytes = b""

    @staticmethod
    def parse(text: str) -> Tenant:
        """Read what stands in the config; a ValueError says what may stand there."""
        if text in (TenantKind.CREDENTIALS.value, TenantKind.NONE.value):
            return Tenant(TenantKind(text))
        if match := re.fullmatch(r"header:\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)", text):
            return Tenant(TenantKind.HEADER, match[1].lower().encode())
        raise ValueError(f"{text!r} is no tenant: write `credentials`, `none` or `header:NAME`")

    def covers(self, name: bytes) -> bool:
        """Do two requests that differ in this header, written in any case, have different keys?"""
        name = name.lower()
        if name == self.header:
            return True
        if name in CREDENTIALS:
            return self.kind is TenantKind.CREDENTIALS
        return name not in IGNORED


class Scope(NamedTuple):
    """A call's head, digested: what its keys and its signature hold besides the codec's bytes."""

    key: bytes
    signature: bytes


_Head: TypeAlias = tuple[str, str, str, Identity, bytes, Headers]


class _Dropped(dict[bytes, bool]):
    """Which names, as they were written, cannot matter: worked out once each, since every request asks for all."""

    LARGEST: Final = 1024

    def __init__(self, tenant: Tenant) -> None:
        super().__init__()
        self._tenant = tenant

    def __missing__(self, name: bytes) -> bool:
        lower = name.lower()
        dropped = lower in IGNORED and lower not in (b"connection", self._tenant.header)
        if len(self) < self.LARGEST and len(name) <= 64:
            self[name] = dropped
        return dropped


class Keys:
    """Makes fingerprints and signatures for one proof key and one rule of tenancy.

    proof_key: 1 to 64 bytes; with a secret one nobody else can make an entry that passes for ours.
    """

    REMEMBERED: Final = 512  # scopes a generation
    LARGEST_REMEMBERED: Final = 4096  # bytes of head; larger heads are digested each time

    def __init__(self, proof_key: bytes, tenant: Tenant) -> None:
        assert 1 <= len(proof_key) <= hashlib.blake2b.MAX_KEY_SIZE
        self._proof_key = proof_key
        self._tenant = tenant
        self._scope = hashlib.blake2b(key=proof_key, digest_size=32, person=b"forebay scope")
        self._proof = hashlib.blake2b(key=proof_key, digest_size=16, person=b"forebay proof")
        self._signature = hashlib.blake2b(key=proof_key, digest_size=16, person=b"forebay joins")
        self._dropped = _Dropped(tenant)
        # Two generations: heads that come again stay, heads that never repeat push out only each other.
        self._young: dict[_Head, Scope] = {}
        self._old: dict[_Head, Scope] = {}

    def scope(
        self,
        *,
        route: str,
        protocol: str,
        path: str,
        identity: Identity,
        query: bytes,
        headers: Headers,
    ) -> Scope:
        """Everything in a request's head that its answer, or its company, may depend on.

        path: as it came. query: without its `?`.
        """
        dropped = self._dropped
        kept = tuple([pair for pair in headers if not dropped[pair[0]]])
        head = (route, protocol, path, identity, query, kept)
        scope = self._young.get(head)
        if scope is None:
            scope = self._old.get(head) or self._digest(head)
            if len(path) + len(query) + sum(len(name) + len(value) for name, value in kept) <= self.LARGEST_REMEMBERED:
                if len(self._young) >= self.REMEMBERED:
                    self._young, self._old = {}, self._young
                self._young[head] = scope
        return scope

    def fingerprint(self, scope: Scope, shared: bytes, item: bytes) -> Fingerprint:
        """Address and proof of one item. shared, item: the codec's canonical bytes."""
        material = scope.key + len(shared).to_bytes(8, "little") + shared + item
        proof = self._proof.copy()
        proof.update(material)
        return Fingerprint(xxhash.xxh3_128_digest(material), proof.digest())

    def fingerprints(self, scope: Scope, shared: bytes, items: Sequence[bytes]) -> list[Fingerprint]:
        """The fingerprint of each item; what they share is read once."""
        if len(items) == 1:
            return [self.fingerprint(scope, shared, items[0])]
        head = scope.key + len(shared).to_bytes(8, "little") + shared
        shared_address, shared_proof = xxhash.xxh3_128(head), self._proof.copy()
        shared_proof.update(head)
        found = []
        for item in items:
            address, proof = shared_address.copy(), shared_proof.copy()
            address.update(item)
            proof.update(item)
            found.append(Fingerprint(address.digest(), proof.digest()))
        return found

    def signature(self, scope: Scope, shared: bytes) -> bytes:
        """16 bytes, equal for items that may ride in one upstream request."""
        signature = self._signature.copy()
        signature.update(scope.signature)
        signature.update(shared)
        return signature.digest()

    def _digest(self, head: _Head) -> Scope:
        route, protocol, path, identity, query, headers = head
        named = sorted(((name.lower(), value) for name, value in headers), key=itemgetter(0))
        credentials = [pair for pair in named if pair[0] in CREDENTIALS]
        others = [pair for pair in named if pair[0] not in IGNORED and pair[0] not in CREDENTIALS]
        material = (
            _bytes(_SCHEMA),
            self._tenant_of(named, credentials),
            _text(route),
            _text(protocol),
            _text(path),
            _count(identity.versions),
            *map(_text, identity.versions),
            struct.pack("<d?", identity.generation, identity.known),
            _text(identity.revision),
            _bytes(query),
            _pairs(others),
            *map(_bytes, _nominated(named)),
        )
        digest = self._scope.copy()
        digest.update(b"".join(material))
        key = digest.digest()
        digest.update(_pairs(credentials))
        return Scope(key, digest.digest())

    def _tenant_of(self, named: Sequence[tuple[bytes, bytes]], credentials: Sequence[tuple[bytes, bytes]]) -> bytes:
        kind = self._tenant.kind
        if kind is TenantKind.NONE:
            return _text(kind.value)
        if kind is TenantKind.HEADER:
            credentials = [pair for pair in named if pair[0] == self._tenant.header]
        digest = hmac.digest(self._proof_key, _pairs(credentials), "sha256")
        return _text(kind.value) + _bytes(self._tenant.header) + _bytes(digest)

    def __repr__(self) -> str:
        tenant = self._tenant.kind.value + (f":{self._tenant.header.decode()}" if self._tenant.header else "")
        return f"<Keys tenant={tenant}, {len(self._young) + len(self._old)} scopes remembered>"


_HEAD_LENGTH: Final = b"inference-header-content-length"  # ignored for its value, but without it a body reads otherwise


def _nominated(named: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    """The end-to-end names that `Connection` takes out: the backend sees another request without them."""
    listed = {word.strip() for name, value in named if name == b"connection" for word in value.lower().split(b",")}
    return sorted(
        word for word in listed if word and word != b"close" and (word not in IGNORED or word == _HEAD_LENGTH)
    )


def _bytes(value: bytes) -> bytes:
    return b"b" + len(value).to_bytes(8, "little") + value


def _text(value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogatepass")
    return b"s" + len(encoded).to_bytes(8, "little") + encoded


def _count(of: Sequence[object]) -> bytes:
    return b"c" + len(of).to_bytes(8, "little")


def _pairs(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    return _count(pairs) + b"".join(_bytes(field) for pair in pairs for field in pair)
