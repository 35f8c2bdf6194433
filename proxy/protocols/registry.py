"""Every codec that Forebay has. A new protocol is one file beside this one and one line here."""

from __future__ import annotations

from typing import Final

from proxy.protocols.codec import Codec
from proxy.protocols.v2 import V2

CODECS: Final[tuple[Codec, ...]] = (V2(),)
