"""Socket options that both ends of a stream connection set."""

from __future__ import annotations

import socket

from lynx_ascend.codec.config import Stream

DSCP_EF = 0xB8  # expedited forwarding (46 << 2), RFC 3246
ANCHOR_PRIORITY = 6  # the highest SO_PRIORITY that needs no privilege
NOTSENT_LOWAT = 128 << 10  # bytes that may wait unsent in the kernel, where no priority reaches them


def prepare(sock: socket.socket) -> None:
    """Options of every connection: no Nagle delay, keepalive against peers that vanish, a short unsent queue."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_NOTSENT_LOWAT", NOTSENT_LOWAT),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def mark(sock: socket.socket, stream: Stream) -> None:
    """Mark the Anchor connection for the network (DSCP EF) and for the host's queueing discipline (SO_PRIORITY)."""
    if stream is not Stream.ANCHOR:
        return
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, DSCP_EF)
    else:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, DSCP_EF)
    if hasattr(socket, "SO_PRIORITY"):  # after IP_TOS, which sets the priority too
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, ANCHOR_PRIORITY)


def address(sock: socket.socket) -> str:
    """ "host:port" of the other end, for messages."""
    try:
        name = sock.getpeername()
    except OSError:
        return "unknown peer"
    return f"{name[0]}:{name[1]}"
