"""What the kernel knows of the other end of a socket, asked without reading from it."""

from __future__ import annotations

import fcntl
import select
import socket
import sys
import termios
from typing import Final

_LEFT: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR  # POLLRDHUP is Linux's
_UNREAD: Final = select.POLLIN


def has_left(sock: socket.socket) -> bool:
    """Has the peer closed or reset the connection, even if bytes before that are still unread?"""
    return bool(_poll(sock, _LEFT) & (_LEFT | select.POLLNVAL))


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
