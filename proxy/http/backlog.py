"""The end of a listening socket without harm to those who have just got in.

The kernel makes connections on its own and keeps them until they are taken; closing the listening socket resets
them, requests and all. So what it has made is taken first, and it is told to make no more meanwhile: it drops what
opens a connection, and a client whose opening was dropped tries again after a second and is refused.

Knows nothing of what is done with a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import struct
import sys
from typing import Final

_SO_ATTACH_FILTER: Final = 26  # Linux; Python does not name it
_FLAGS, _SYN = 13, 0x02  # where TCP's header has its flags, and the one that opens a connection
_NO_SYN: Final = b"".join(
    struct.pack("=HBBI", *instruction)  # classic BPF: code, jump if true, jump if false, operand
    for instruction in (
        (0x30, 0, 0, _FLAGS),  # load a byte
        (0x45, 0, 1, _SYN),  # is this bit set?
        (0x06, 0, 0, 0),  # drop
        (0x06, 0, 0, 0xFFFFFFFF),  # keep
    )
)


def take_all(listener: asyncio.Server) -> list[socket.socket]:
    """The connections that the kernel has made and nobody has taken. Close `listener` at once after this."""
    taken: list[socket.socket] = []
    for listening in listener.sockets:
        with socket.socket(fileno=os.dup(listening.fileno())) as twin:  # the loop's own cannot accept
            twin.setblocking(False)
            _let_nobody_in(twin)
            with contextlib.suppress(OSError):  # none is left, or there is no room for one more
                while True:
                    accepted, _ = twin.accept()
                    accepted.setblocking(False)
                    taken.append(accepted)
    return taken


def _let_nobody_in(listening: socket.socket) -> None:
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(_NO_SYN)
    described = struct.pack("@HP", len(_NO_SYN) // 8, ctypes.addressof(program))
    with contextlib.suppress(OSError):  # a kernel without it: whoever comes in this very moment is reset
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)
