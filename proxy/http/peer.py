"""What the kernel knows of the other end of a socket, and what it shall find out, without reading from it."""

from __future__ import annotations

import contextlib
import fcntl
import select
import socket
import sys
import termios
from typing import Final

_LEFT: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR  # POLLRDHUP is Linux's
_GONE: Final = select.POLLHUP | select.POLLERR
_UNREAD: Final = select.POLLIN

_PROBING: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Seconds of silence before the first question, seconds between two, and how many may stay unanswered."""


def has_left(sock: socket.socket) -> bool:
    """Has the peer closed or reset the connection, even if bytes before that are still unread?"""
    return bool(_poll(sock, _LEFT) & (_LEFT | select.POLLNVAL))


def is_gone(sock: socket.socket) -> bool:
    """Is there no connection any more? One that only ended writing is still there."""
    return bool(_poll(sock, _GONE) & (_GONE | select.POLLNVAL))


def probe(sock: socket.socket) -> None:
    """Let the kernel ask a silent peer whether it is there; if not, that is an error on the socket in two minutes."""
    with contextlib.suppress(OSError):  # no TCP, or no connection any more
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _PROBING.items():
            if (option := getattr(socket, name, None)) is not None:  # by other names, or not at all, on other systems
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


def has_unread(sock: socket.socket) -> bool:
    """Do bytes of the peer wait to be read?"""
    return bool(_poll(sock, _UNREAD) & _UNREAD)


def unacknowledged(sock: socket.socket) -> int:
    """How many bytes that we wrote has the peer's kernel not confirmed yet? 0 where ours does not tell."""
    try:
        answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError):  # not a socket any more, or not asked like this on this system
        return 0
    return int.from_bytes(answer, sys.byteorder)


def _poll(sock: socket.socket, events: int) -> int:
    fd = sock.fileno()
    if fd < 0:
        return select.POLLNVAL
    poll = select.poll()
    poll.register(fd, events)
    return next((happened for _, happened in poll.poll(0)), 0)
