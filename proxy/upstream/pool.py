"""Connections to one target: made when needed, kept while idle, each lent to one exchange at a time.

aiohttp's connector resolves, connects, speaks TLS and keeps idle connections; it asks each `Link`
itself whether it may be used again. There is no limit on connections: slots and clients bound them.
"""

from __future__ import annotations

import asyncio
import functools

from aiohttp import ClientTimeout, TCPConnector
from aiohttp.client_exceptions import ClientConnectorError, ClientError
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from yarl import URL

from proxy.terms import Failure
from proxy.upstream.address import Address
from proxy.upstream.errors import UpstreamError, no_connection
from proxy.upstream.link import Link


class Lent:
    """A link in use. Exactly one of `give_back` and `drop` ends it; further calls do nothing."""

    __slots__ = ("_connection", "link", "reused")

    def __init__(self, connection: Connection) -> None:
        assert isinstance(connection.protocol, Link)
        self._connection = connection
        self.link = connection.protocol
        self.reused = self.link.exchanges > 0

    def give_back(self) -> None:
        """The exchange went through: keep the link if it is as good as new."""
        if self.link.settle():
            self._connection.release()
        else:
            self._connection.close()

    def drop(self) -> None:
        """The exchange did not go through: nothing may follow on this link."""
        self._connection.close()

    def __repr__(self) -> str:
        return f"<Lent {self.link!r} reused={self.reused}>"


class Pool:
    """Must be made inside a running event loop. keepalive: seconds that an idle link is kept; None: none ever is."""

    def __init__(self, address: Address, *, keepalive: float | None) -> None:
        self._address = address
        # The connector wants a request to know where to connect to; one serves for all.
        self._place = ClientRequest("GET", URL(address.url))
        self._connector = _Connector(limit=0, keepalive_timeout=keepalive)

    async def take(self, *, within: float | None, fresh: bool = False) -> Lent:
        """A link to write a request on. fresh: one that was never used. Raises UpstreamError."""
        limits = ClientTimeout(total=None, connect=within, ceil_threshold=float("inf"))
        try:
            while True:
                lent = Lent(await self._connector.connect(self._place, [], limits))
                if not (fresh and lent.reused):
                    return lent
                lent.drop()  # a sibling was dead, so this one may well be
        except TimeoutError:
            message = f"cannot connect to {self._address.url}: no connection within {within:g} s"
            raise UpstreamError(Failure.TIMEOUT, message, sent=False) from None
        except ClientConnectorError as error:
            raise no_connection(self._address.url, error) from error
        except ClientError as error:
            message = f"cannot connect to {self._address.url}: not an address"
            raise UpstreamError(Failure.CONNECT, message, sent=False) from error

    @property
    def idle(self) -> int:
        return self._connector.idle

    @property
    def busy(self) -> int:
        return self._connector.busy

    async def aclose(self) -> None:
        await self._connector.close()

    def __repr__(self) -> str:
        return f"<Pool {self._address.url} busy={self.busy} idle={self.idle}>"


def _link(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return Link(loop)


class _Connector(TCPConnector):
    """aiohttp's connector with links of ours."""

    def __init__(self, *, limit: int, keepalive_timeout: float | None) -> None:
        kept = {"force_close": True} if keepalive_timeout is None else {"keepalive_timeout": keepalive_timeout}
        super().__init__(limit=limit, **kept)
        self._factory = functools.partial(_link, loop=self._loop)

    @property
    def idle(self) -> int:
        return sum(len(links) for links in self._conns.values())

    @property
    def busy(self) -> int:
        return len(self._acquired)
