"""What the kernel knows of the other end of a socket, asked without reading from it."""

from __future__ import annotations

import select
import socket
from typing import Final

_LEFT: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR  # POLLRDHUP is Linux's
_UNREAD: Final = select.POLLIN


def has_left(sock: socket.socket) -> bool:
    """Has the peer closed or reset the connection, even if bytes before that are still unread?"""
    return bool(_poll(sock, _LEFT) & (_LEFT | select.POLLNVAL))


def has_unread(sock: socket.socket) -> bool:
    """Do bytes of the peer wait to be read?"""
    return bool(_poll(sock, _UNREAD) & _UNREAD)


def _poll(sock: socket.socket, events: int) -> int:
    fd = sock.fileno()
    if fd < 0:
        return select.POLLNVAL
    poll = select.poll()
    poll.register(fd, events)
    return next((happened for _, happened in poll.poll(0)), 0)
