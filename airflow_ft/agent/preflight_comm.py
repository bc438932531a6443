"""The communication check: plain sockets between the nodes of one job, pairwise and all together.

Every node serves and asks at the same time, on the address that the backend gave it. Three stages:

1. *Pairs*: rounds in which partners change (the circle method), so that a node that is bad with everybody is told from
   a pair that is bad alone. Latency is the median of pings; bandwidth is one transfer, whose content is checked.
2. *Together*: a ring all-reduce of whole numbers whose sum is known: it has to be right, not only fast.
3. *Gossip*: everybody tells everybody what it measured, so that all come to the same verdict (``preflight_verdict``).

What is looked at after that (``preflight_together``) is told in a gossip of its own (``tell``).

Up to ``ALL_PAIRS`` nodes every pair is tested, above that the first rounds only. All waits have a deadline: a peer that
never comes is a result.
"""

from __future__ import annotations

import json
import socket
import socketserver
import struct
import threading
import time
import zlib
from typing import Any, NamedTuple

PINGS = 21
PING_BYTES = 64
TRANSFER_BYTES = 8 << 20
CHUNK = 1 << 16
ALL_PAIRS = 16
SOME_ROUNDS = 4
VECTOR = 256
PAIR_SECONDS = 6.0
NO_PORT = -1


class Peer(NamedTuple):
    """One node of the job."""

    name: str
    host: str
    port: int


class Pair(NamedTuple):
    """What one pair came to; ``error`` is empty for a good one."""

    one: str
    other: str
    latency_us: float = 0.0
    mb_per_second: float = 0.0
    error: str = ""
    ahead_seconds: float = 0.0  # the other's clock against ours


def partners(count: int, rank: int, rounds: int) -> list[int]:
    """Whom this node meets in each round; -1: nobody. In each round every node has one partner at most."""
    even = count + count % 2
    met = []
    for turn in range(min(rounds, even - 1)):
        order = [0] + [(turn + place) % (even - 1) + 1 for place in range(even - 1)]
        place = order.index(rank)
        other = order[even - 1 - place]
        met.append(other if other < count else -1)
    return met


class Check:
    """One node's part in the check. ``facts`` is what it tells the others beside its pairs."""

    def __init__(self, peers: list[Peer], rank: int, facts: dict[str, Any], deadline: float) -> None:
        self._peers, self._rank, self._deadline = peers, rank, deadline
        now = time.monotonic()
        self._connect_until = now + 0.6 * (deadline - now)  # the rest is for telling the others
        self._known: list[dict[str, Any]] = [{}, {}]  # what is known of each node, by name: first and second gossip
        self._facts = facts
        self._port = 0
        self._ring: dict[int, list[int]] = {}
        self._arrived = threading.Condition()
        self._server = _serve(peers[rank], self)

    def run(self, transfer_bytes: int = TRANSFER_BYTES) -> dict[str, Any]:
        """Do all stages; returns what is known of every node, by name."""
        count = len(self._peers)
        rounds = count if count <= ALL_PAIRS else SOME_ROUNDS
        pairs = []
        for other in partners(count, self._rank, rounds):
            if other > self._rank:
                pairs.append(self._pair(self._peers[other], transfer_bytes))
        together = self._together()
        mine = {"pairs": pairs, "together": together, "facts": self._facts, "at": time.time()}
        return self.tell(mine, stage=0)

    def tell(self, mine: dict[str, Any], stage: int = 1) -> dict[str, Any]:
        """Tell the others, and wait for what they tell; returns what is known of every node, by name."""
        self._known[stage][self._peers[self._rank].name] = mine
        self._gossip(stage)
        return self._known[stage]

    def publish_port(self, port: int) -> None:
        """Let others ask for a port of ours; 0: there is none, and none will be."""
        self._port = port or NO_PORT

    def port_of(self, rank: int, until: float) -> int:
        """Return the port that a node has published; 0 if it has none, or says nothing in time."""
        peer = self._peers[rank]
        while time.monotonic() < until:
            try:
                with socket.create_connection((peer.host, peer.port), 1.0) as link:
                    link.settimeout(2.0)
                    send_message(link, {"do": "port"})
                    port = int(read_message(link))
            except (OSError, ValueError):
                return 0  # it has answered before: it is gone
            if port:
                return max(0, port)
            time.sleep(0.1)
        return 0

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    # --- stages ----------------------------------------------------------------------------------------------------

    def _pair(self, peer: Peer, transfer_bytes: int) -> Pair:
        me = self._peers[self._rank].name
        try:
            with self._connected(peer) as link:
                send_message(link, {"do": "pair", "bytes": transfer_bytes})
                times = []
                for _ in range(PINGS):
                    began = time.perf_counter()
                    link.sendall(b"p" * PING_BYTES)
                    _receive(link, PING_BYTES)
                    times.append(time.perf_counter() - began)
                data = bytes(range(256)) * (CHUNK // 256)
                total, checksum = 0, 0
                began = time.perf_counter()
                while total < transfer_bytes:
                    link.sendall(data)
                    total += len(data)
                    checksum = zlib.crc32(data, checksum)
                asked = time.time()
                answer = read_message(link)
                seconds = max(time.perf_counter() - began, 1e-9)
                if answer.get("crc") != checksum:
                    return Pair(me, peer.name, error="wrong data arrived")
                latency = sorted(times)[PINGS // 2]
                speed = round(total / seconds / 1e6, 1)
                ahead = float(answer["at"]) - (asked + time.time()) / 2
                return Pair(me, peer.name, round(latency * 1e6, 1), speed, "", round(ahead, 3))
        except (OSError, ValueError, KeyError) as error:
            return Pair(me, peer.name, error=str(error) or type(error).__name__)

    def _together(self) -> str:
        """The ring all-reduce; returns what was wrong with it."""
        count = len(self._peers)
        vector = [(self._rank + 1) * (place + 1) for place in range(VECTOR)]
        total, passing = list(vector), vector
        following = self._peers[(self._rank + 1) % count]
        try:
            with self._connected(following) as link:
                send_message(link, {"do": "ring"})
                for step in range(count - 1):
                    send_message(link, {"step": step, "vector": passing})
                    passing = self._next_of_ring(step)
                    total = [one + other for one, other in zip(total, passing)]  # noqa: B905 - Python 3.8
        except (OSError, ValueError) as error:
            return str(error) or type(error).__name__
        ranks = count * (count + 1) // 2
        return "" if total == [ranks * (place + 1) for place in range(VECTOR)] else "the sum is wrong"

    def _next_of_ring(self, step: int) -> list[int]:
        with self._arrived:
            while step not in self._ring:
                left = min(self._deadline - time.monotonic(), PAIR_SECONDS)
                if left <= 0 or not self._arrived.wait(left):
                    raise OSError("nothing came round the ring from %s" % self._peers[self._rank - 1].name)
            return self._ring[step]

    def _gossip(self, stage: int) -> None:
        known = self._known[stage]
        while len(known) < len(self._peers) and time.monotonic() < self._deadline:
            for peer in self._peers:
                if peer.name not in known:
                    for asked in [peer] + [other for other in self._peers if other.name in known]:
                        if asked.name != self._peers[self._rank].name and self._ask(asked, peer.name, stage):
                            break
            if len(known) < len(self._peers):
                time.sleep(0.1)

    def _ask(self, asked: Peer, name: str, stage: int) -> bool:
        known = self._known[stage]
        try:
            with socket.create_connection((asked.host, asked.port), 1.0) as link:
                link.settimeout(2.0)
                send_message(link, {"do": "known", "stage": stage})
                for node, told in read_message(link).items():
                    known.setdefault(node, told)
        except (OSError, ValueError):
            return False
        return name in known

    def _connected(self, peer: Peer) -> socket.socket:
        """A connection; peers come a few seconds apart. Raises OSError after the deadline."""
        while True:
            left = self._connect_until - time.monotonic()
            try:
                link = socket.create_connection((peer.host, peer.port), max(0.05, min(left, 1.0)))
                link.settimeout(PAIR_SECONDS)
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return link
            except OSError as error:
                if left <= 0:
                    raise OSError("no connection: %s" % (error.strerror or error)) from None
                time.sleep(0.05)

    # --- serving ---------------------------------------------------------------------------------------------------

    def answer(self, link: socket.socket) -> None:
        """Serve one connection of a peer."""
        link.settimeout(max(1.0, self._deadline - time.monotonic()))
        wish = read_message(link)
        if wish["do"] == "known":
            send_message(link, self._known[wish["stage"]])
        elif wish["do"] == "port":
            send_message(link, self._port)
        elif wish["do"] == "pair":
            for _ in range(PINGS):
                link.sendall(_receive(link, PING_BYTES))
            total, checksum = 0, 0
            while total < wish["bytes"]:
                data = _receive(link, CHUNK)
                total += len(data)
                checksum = zlib.crc32(data, checksum)
            send_message(link, {"crc": checksum, "at": time.time()})
        elif wish["do"] == "ring":
            for _ in range(len(self._peers) - 1):
                told = read_message(link)
                with self._arrived:
                    self._ring[told["step"]] = told["vector"]
                    self._arrived.notify_all()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128
    check: Check

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that went away is seen by whoever asked."""


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        server: Any = self.server
        server.check.answer(self.request)


def _serve(own: Peer, check: Check) -> _Server:
    server = _Server((own.host, own.port), _Handler)
    server.check = check
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    return server


def send_message(link: socket.socket, value: Any) -> None:
    """Send a JSON value."""
    data = json.dumps(value).encode()
    link.sendall(struct.pack("!I", len(data)) + data)


def read_message(link: socket.socket) -> Any:
    """Receive one. Raises OSError, and ValueError for what isn't one."""
    (size,) = struct.unpack("!I", _receive(link, 4))
    if size > 1 << 24:
        raise ValueError("a stranger spoke: %d bytes" % size)
    return json.loads(_receive(link, size))


def _receive(link: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        data = link.recv(min(size, 1 << 20))
        if not data:
            raise OSError("the connection was closed")
        parts.append(data)
        size -= len(data)
    return b"".join(parts)
