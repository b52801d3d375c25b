"""Where the processes of a job find each other when no `mpiexec` has started them: a server of the wire protocol PMI-1, which MPICH asks.

Every process first says that it is there (`meet`), and hears at once what is wrong if it is not with those that were expected: `MPI_Init` itself
would wait for ever, without looking at signals. Then it calls `MPI_Init` with `PMI_PORT` and `PMI_ID` set. The server must not live in one of these
processes, since `MPI_Init` holds the interpreter's lock. So it is a thread of whoever starts them (`calque launch`, `spawn`), or a process of its
own: this file imports nothing of Calque, and runs as a script (`python -I rendezvous.py HOST PORT SIZE SECONDS`) while its standard input is open.

Source of the protocol: the sources of MPICH, `src/pmi/src/pmi_v1.c` and `pmi_wire.c`.
"""

from __future__ import annotations

import math
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable

LONGEST = 1 << 16  # bytes of one message; those of MPICH have some hundred
HELLO = "calque_hello"
LAST_SECONDS = 30.0  # for which processes are served when rank 0 has ended: MPICH crashes at its end if nobody answers any more


def _fields(line: str) -> dict[str, str]:
    """`cmd=put key=a value=b` as a dict; the last value may hold blanks."""
    words, found = line.split(" "), dict[str, str]()
    last = ""
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            found[name], last = value, name
        elif last:
            found[last] += f" {word}"
    return found


class _Peer:
    """One connection: what has come of its next message, and who it is."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.text = b""
        self.rank = -1

    def say(self, text: str) -> None:
        self.connection.sendall(text.encode() + b"\n")


class Rendezvous:
    """Serves one gang of `size` processes. `seconds`: how long the first ones wait for the last."""

    def __init__(self, size: int, seconds: float = 300.0, host: str = "127.0.0.1", port: int = 0) -> None:
        self.size, self.seconds = size, seconds
        self._kvs = f"kvs_{secrets.token_hex(8)}"  # the same name twice mixes up the processes of two gangs
        self._values: dict[str, str] = {}
        self._peers: list[_Peer] = []
        self._met: dict[int, _Peer] = {}
        self._ids: set[int] = set()
        self._inside: list[_Peer] = []  # of a barrier
        self._over = ""  # why nobody can meet any more
        self._until = 0.0
        self._listener = socket.create_server((host, port), backlog=min(size + 8, 4096))
        self.host, self.port = self._listener.getsockname()[:2]
        self._watched = selectors.DefaultSelector()
        self._watched.register(self._listener, selectors.EVENT_READ)
        self._stop = False
        self._gone: dict[int, str] = {}

    def start(self) -> "Rendezvous":
        """Serve from a thread."""
        threading.Thread(target=self.serve, name="calque-rendezvous", daemon=True).start()
        return self

    def peers(self) -> int:
        """Number of connections."""
        return len(self._peers)

    def close(self) -> None:
        """Serve no longer."""
        self._stop = True

    def gone(self, rank: int, how: str) -> None:
        """Whoever has started the processes knows that one has ended; those that wait for it are told, if it has not come before. From any thread."""
        self._gone.setdefault(rank, how)

    def serve(self) -> None:
        """Until `close`."""
        try:
            while not self._stop:
                for key, _ in self._watched.select(0.1):
                    if key.data is None:
                        self._accept()
                    else:
                        self._hear(key.data)
                if self._until and time.monotonic() > self._until:
                    missing = [str(r) for r in range(self.size) if r not in self._met]
                    self._refuse(f"after {self.seconds:g} s rank {', '.join(missing)} of {self.size} had not come")
                lost = [(rank, how) for rank, how in list(self._gone.items()) if rank not in self._met and rank not in self._ids]
                if lost and not self._over and len(self._met) < self.size:
                    self._refuse(f"rank {lost[0][0]} of {self.size} {lost[0][1]} before it came")
                    for peer in [p for p in self._peers if p.rank in self._ids]:
                        self._drop(peer)  # MPI itself waits for the one that is gone, and hears nothing else
        finally:
            for peer in list(self._peers):
                self._drop(peer)
            self._watched.close()
            self._listener.close()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = _Peer(connection)
        self._peers.append(peer)
        self._watched.register(connection, selectors.EVENT_READ, peer)

    def _drop(self, peer: _Peer) -> None:
        if peer in self._peers:
            self._peers.remove(peer)
            self._watched.unregister(peer.connection)
            peer.connection.close()
        if self._met.get(peer.rank) is peer and len(self._met) < self.size:
            del self._met[peer.rank]  # it has given up before all were there

    def _hear(self, peer: _Peer) -> None:
        try:
            data = peer.connection.recv(4096)
            peer.text += data
            if not data or len(peer.text) > LONGEST:
                raise ConnectionError
            while b"\n" in peer.text:
                line, _, peer.text = peer.text.partition(b"\n")
                self._answer(peer, _fields(line.decode("latin1").strip()))
        except (OSError, ValueError, KeyError):  # gone, or none of ours: it hears nothing
            self._drop(peer)

    def _refuse(self, text: str) -> None:
        self._over, self._until = text, 0.0
        for peer in list(self._met.values()):
            peer.say(f"cmd={HELLO} error={text}")

    def _answer(self, peer: _Peer, got: dict[str, str]) -> None:
        command = got["cmd"]
        answer = _ANSWERS.get(command)
        if command == HELLO:
            self._meet(peer, int(got["rank"]), int(got["size"]), float(got.get("seconds", "inf")))
        elif command == "initack":
            rank = int(got["pmiid"])
            if not 0 <= rank < self.size or rank in self._ids or self._over:
                raise ValueError(rank)
            self._ids.add(rank)
            peer.rank = rank
            for text in ("cmd=initack rc=0", f"cmd=set size={self.size}", f"cmd=set rank={rank}", "cmd=set debug=0"):
                peer.say(text)
        elif command == "barrier_in":
            self._inside.append(peer)
            if len(self._inside) == self.size:
                for other in self._inside:
                    other.say("cmd=barrier_out rc=0")
                self._inside = []
        elif answer is not None:
            peer.say(answer(self, got))
        else:
            peer.say(f"cmd={command}_result rc=-1 msg=unknown_command")

    def _meet(self, peer: _Peer, rank: int, size: int, seconds: float) -> None:
        if not self._over and (size != self.size or not 0 <= rank < size):
            self._over = f"rank {rank} expects {size} processes where {self.size} were to meet"
        elif not self._over and rank in self._met:
            self._over = f"two processes came as rank {rank}"
        peer.rank = rank
        if self._over:
            peer.say(f"cmd={HELLO} error={self._over}")
            self._refuse(self._over)
            return
        self._met[rank] = peer
        if not self._until or seconds < self.seconds:  # the most impatient one decides
            self.seconds = min(self.seconds, seconds)
            self._until = min(self._until or math.inf, time.monotonic() + self.seconds)
        if len(self._met) == self.size:
            self._until = 0.0
            for other in self._met.values():
                other.say(f"cmd={HELLO} rc=0")

    def _put(self, got: dict[str, str]) -> str:
        self._values[got["key"]] = got["value"]
        return "cmd=put_result rc=0 msg=success"

    def _get(self, got: dict[str, str]) -> str:
        value = self._values.get(got["key"])
        return "cmd=get_result rc=-1 msg=key_not_found" if value is None else f"cmd=get_result rc=0 msg=success value={value}"


_ANSWERS: dict[str, Callable[[Rendezvous, dict[str, str]], str]] = {
    "init": lambda server, got: "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
    "get_maxes": lambda server, got: "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024 rc=0",
    "get_appnum": lambda server, got: "cmd=appnum appnum=0 rc=0",
    "get_my_kvsname": lambda server, got: f"cmd=my_kvsname kvsname={server._kvs} rc=0",
    "get_universe_size": lambda server, got: f"cmd=universe_size size={server.size} rc=0",
    "put": Rendezvous._put,
    "get": Rendezvous._get,
    "finalize": lambda server, got: "cmd=finalize_ack rc=0",
}


def meet(host: str, port: int, rank: int, size: int, seconds: float) -> str:
    """Come to the rendezvous and wait until all are there: "", or what went wrong. The server may come later than this process."""
    until, connection = time.monotonic() + seconds, None
    while connection is None:
        try:
            connection = socket.create_connection((host, port), timeout=5)
        except OSError as error:
            if time.monotonic() > until:
                return f"nobody answered at {host}:{port} within {seconds:g} s ({error})"
            time.sleep(0.05)
    with connection:
        connection.settimeout(0.2)
        connection.sendall(f"cmd={HELLO} rank={rank} size={size} seconds={seconds}\n".encode())
        text = b""
        while b"\n" not in text:  # in short turns: Ctrl-C comes through
            try:
                data = connection.recv(4096)
            except TimeoutError:
                if time.monotonic() < until + 10:
                    continue
                return f"the others had not come to {host}:{port} within {seconds:g} s"
            except OSError:
                data = b""
            if not data:
                return f"the rendezvous at {host}:{port} ended; it does not belong to this job, or rank 0 is gone"
            text += data
    return _fields(text.decode("latin1").strip()).get("error", "")


def _main(words: list[str]) -> int:
    """Serve until standard input ends, as it does when the process that has started this one ends."""
    host, port, size, seconds = words[0], int(words[1]), int(words[2]), float(words[3])
    try:
        server = Rendezvous(size, seconds, host, port)
    except OSError as error:
        sys.stdout.write(f"error {error}\n")
        return 1
    sys.stdout.write(f"port {server.port}\n")
    sys.stdout.flush()
    server.start()
    sys.stdin.read()
    until = time.monotonic() + LAST_SECONDS
    while server.peers() and time.monotonic() < until:
        time.sleep(0.05)
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
