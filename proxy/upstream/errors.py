"""What an exchange with the backend can fail of, in words that may be logged.

Invariants
    A message is one line, names the target and the cause, and quotes neither bytes of the backend nor
    anything of the caller: either may hold a secret.
"""

from __future__ import annotations

import os
import socket
from enum import Enum

from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientConnectorSSLError,
)
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from proxy.terms import Failure


class Retry(Enum):
    """Why an exchange may be tried once more; the `reason` label of `forebay_upstream_retries_total`."""

    CONNECT = "connect"  # no connection came about: nothing was sent
    REUSED = "reused"  # a reused connection died before a byte of the answer: it was closing already


class UpstreamError(Exception):
    """The backend gave no whole answer.

    failure: how it failed. sent: False where the backend cannot have seen any of the request.
    retry: why one more try is safe for a request that may be computed twice; None where it is not.
    """

    def __init__(self, failure: Failure, message: str, *, sent: bool = True, retry: Retry | None = None) -> None:
        super().__init__(message)
        self.failure = failure
        self.message = message
        self.sent = sent
        self.retry = retry

    def __repr__(self) -> str:
        return f"<UpstreamError {self.failure.value}: {self.message}>"


def no_connection(target: str, error: ClientConnectorError) -> UpstreamError:
    """No connection came about, for a reason that the operating system or TLS gave."""
    if isinstance(error, ClientConnectorCertificateError):
        cause = "its certificate is not trusted"
    elif isinstance(error, ClientConnectorSSLError):
        cause = "no TLS came about with it"
    elif isinstance(error, ClientConnectorDNSError) or isinstance(error.os_error, socket.gaierror):
        cause = "its name does not resolve"
    elif error.os_error.errno:
        cause = os.strerror(error.os_error.errno).lower()
    else:  # several addresses, each with an errno of its own
        cause = "none of its addresses answers"
    return UpstreamError(Failure.CONNECT, f"cannot connect to {target}: {cause}", sent=False, retry=Retry.CONNECT)


def not_http(target: str, error: HttpProcessingError) -> UpstreamError:
    """What came is no head of an answer that we can read."""
    cause = "a head above the limits" if isinstance(error.__cause__, LineTooLong) else "what is not HTTP/1.1"
    return UpstreamError(Failure.RESET, f"{target} sent {cause}")
