"""Server ping: whether a PostgreSQL server answers at all: the first byte of its protocol, and no
login.

A server that is stopped, swapped out or stuck in its disk still has its process and its socket.
"""

import socket
from pathlib import Path

# A request for TLS, which a server answers with one letter whatever state it is in.
REQUEST = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")
ANSWER_S = 2.0


def is_answering(socket_dir: Path, port: int, limit_s: float = ANSWER_S) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(limit_s)
        try:
            probe.connect(str(socket_dir / f".s.PGSQL.{port}"))
            probe.sendall(REQUEST)
            return bool(probe.recv(1))
        except OSError:
            return False
