"""Every codec that Forebay has. A new protocol is one file beside this one and one line here."""

from __future__ import annotations

from typing import Final

from proxy.protocols.codec import Codec
from proxy.protocols.json_map import JsonMap, JsonMapSettings
from proxy.protocols.openai_embeddings import OpenAIEmbeddings
from proxy.protocols.openai_generation import OpenAIGeneration
from proxy.protocols.tei import TEI
from proxy.protocols.tgi import TGI
from proxy.protocols.v1 import V1
from proxy.protocols.v2 import V2

CODECS: Final[tuple[Codec, ...]] = (V2(), V1(), OpenAIEmbeddings(), OpenAIGeneration(), TEI(), TGI())
"""Those that need no configuration, in the order in which they are asked whether they know a request."""

BY_CONFIGURATION: Final = "json_map"
"""The protocol of the codec that every route makes of its own settings."""

PROTOCOLS: Final = (*dict.fromkeys(codec.protocol for codec in CODECS), BY_CONFIGURATION)
"""What a route may say to have one of them."""


def codecs(protocol: str, json_map: JsonMapSettings) -> tuple[Codec, ...]:
    """The codecs that may know the requests of a route whose settings say this; all of CODECS for `auto`."""
    if protocol == BY_CONFIGURATION:
        return (JsonMap(json_map),)
    named = tuple(codec for codec in CODECS if codec.protocol == protocol)
    return named or CODECS
