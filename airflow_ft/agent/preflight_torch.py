"""What only torch can tell: how fast each GPU is, and whether an all-reduce over training's own backend adds up.

A process of its own (``agent.pyz torch``, started by ``preflight_child``), because a driver or a NCCL that crashes
takes its process along. It says what it does, one JSON object a line, so that even then it is known what it was at:

==================================  ================================================================================
``{"device": …, "count": …}``       torch works, and has so many devices
``{"speed": [[…], …]}``             for each device: TFLOP/s of a product of matrices, GB/s of its memory, GB/s to it
``{"store": port}``                 node 0 serves the store here, where the others meet
``{"at": "n2"}``                    a pair begins
``{"pair": [one, other, …]}``       what it came to: ``preflight_comm.Pair``
``{"together": "", "value": …}``    the all-reduce of all nodes, one for each GPU of a node (for each rail)
``{"skipped": why}``                there is nothing more to come
==================================  ================================================================================

Numbers are whole (int32), so a sum is right or wrong and never nearly right. In each round every node has another
partner (``preflight_comm.partners``), and nobody goes on before all have: a node that is late makes no other pair late.

NCCL is used where there are GPUs. No machine with two GPU nodes was at hand: that path has only run with gloo, whose
calls are the same.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

from .preflight_comm import Pair, partners

ROUNDS = 3  # two partners at least for everybody, also where their number is odd: a bad node is told from a bad pair
PAIR_SECONDS = 10.0
MEET_SHARE = 0.6  # of its time: torch takes long to be imported, on some nodes longer
TURNS = 11
BYTES = {"gloo": 8 << 20, "nccl": 256 << 20}
PRIME = 251  # the pattern's period: no power of two, so that whatever is moved by a block is seen
SMALL = 256


def main(config: dict[str, Any]) -> int:
    """Measure; returns the exit code. What can't be done is said, never raised."""
    try:
        _run(importlib.import_module("torch"), config)
    except Exception as error:  # whatever torch throws: it is the answer
        _say(skipped="%s: %s" % (type(error).__name__, " ".join(str(error).split())[:300]))
    return 0


def _run(torch: Any, config: dict[str, Any]) -> None:
    device = str(config.get("device", "cpu"))
    if device != "cpu" and not torch.cuda.is_available():
        _say(skipped="torch %s sees no GPU: its driver and CUDA %s don't fit" % (torch.__version__, torch.version.cuda))
        return
    count = 1 if device == "cpu" else torch.cuda.device_count()
    _say(device=device, count=count, torch=str(torch.__version__))
    if config.get("speed"):
        _say(speed=[speed(torch, device, number) for number in range(count)])
    names = [str(name) for name in config.get("peers", ())]
    if len(names) > 1:
        _Collective(torch, names, config, count).run()


# --- one device ------------------------------------------------------------------------------------------------------


def speed(torch: Any, device: str, number: int = 0, size: int | None = None) -> list[float]:
    """TFLOP/s, GB/s of memory, GB/s from the host, of one device. On ``cpu`` small ones: to test the arithmetic."""
    on_gpu = device != "cpu"
    where = torch.device(device, number) if on_gpu else torch.device("cpu")
    side = size or (8192 if on_gpu else 256)
    kind = torch.bfloat16 if on_gpu else torch.float32
    one = torch.ones((side, side), dtype=kind, device=where)
    product = _seconds(torch, where, lambda: one @ one)
    source = torch.ones(side * side * 4, dtype=torch.float32, device=where)
    target = torch.empty_like(source)
    memory = _seconds(torch, where, lambda: target.copy_(source))
    host = torch.ones(side * side, dtype=torch.float32)
    host = host.pin_memory() if on_gpu else host
    copied = _seconds(torch, where, lambda: target[: side * side].copy_(host, non_blocking=True))
    volume = source.numel() * 4
    return [
        round(2.0 * side**3 / product / 1e12, 6),
        round(2.0 * volume / memory / 1e9, 2),  # read once, written once
        round(host.numel() * 4 / copied / 1e9, 2),
    ]


def _seconds(torch: Any, where: Any, work: Any) -> float:
    """The best of a few: what disturbs makes it slower, never faster."""
    wait = (lambda: torch.cuda.synchronize(where)) if where.type != "cpu" else (lambda: None)
    best = float("inf")
    for _ in range(5):
        wait()
        began = time.perf_counter()
        work()
        wait()
        best = min(best, time.perf_counter() - began)
    return max(best, 1e-9)


# --- nodes together --------------------------------------------------------------------------------------------------


class _Collective:
    """This node's part. ``config``: ``rank``, ``backend``, ``host`` (this node's), ``bytes``, ``seconds``."""

    def __init__(self, torch: Any, names: list[str], config: dict[str, Any], count: int) -> None:
        self._torch, self._dist = torch, torch.distributed
        self._names, self._rank, self._count = names, int(config["rank"]), count
        self._backend = str(config.get("backend", "gloo"))
        self._bytes = int(config.get("bytes", BYTES[self._backend]))
        self._gone: set[int] = set()
        self._patience = timedelta(seconds=MEET_SHARE * float(config.get("seconds", 60.0)))
        _prepare(self._backend, str(config.get("host", "")))
        self._store = self._met(config)

    def run(self) -> None:
        """Do all rounds, then all together."""
        odd = self._hello()
        if odd:
            _say(skipped=odd)
            return
        for turn, other in enumerate(partners(len(self._names), self._rank, ROUNDS)):
            if other >= 0 and other not in self._gone:
                _say(at=self._names[other])
                _say(pair=list(self._pair(turn, other)))
            self._wait_for_all("round %d" % turn)
        error, told = "", []
        for rail in range(self._rails):
            _say(at="all nodes")
            try:
                told.append(self._together(rail))
            except Exception as problem:
                error = _text(problem)
                break
        _say(together=error, value="; ".join(told))
        self._store.set("end %d" % self._rank, "1")
        if self._rank == 0:  # it serves the store: the last one to go
            self._wait_for_all("end")

    def _met(self, config: dict[str, Any]) -> Any:
        """The store. Node 0's port is the system's choice; the others are told it on their standard input."""
        wait = self._patience
        if self._rank == 0:
            store = self._dist.TCPStore(str(config["host"]), 0, is_master=True, wait_for_workers=False, timeout=wait)
            _say(store=store.port)
            return store
        host, _, port = sys.stdin.readline().strip().rpartition(" ")
        if not port.isdigit() or port == "0":
            raise OSError("node 0 has no store: torch doesn't work there")
        return self._dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=wait)

    def _hello(self) -> str:
        """Wait for everybody; returns why there is nothing to do."""
        self._store.set("count %d" % self._rank, str(self._count))
        counts = []
        for rank, name in enumerate(self._names):
            try:
                self._store.wait(["count %d" % rank], self._patience)
                counts.append(int(self._store.get("count %d" % rank)))
            except Exception as error:
                return "%s did not come: %s" % (name, _text(error)[:100])
        self._rails = min(counts) if self._backend == "nccl" else 1
        return ""

    def _wait_for_all(self, stage: str) -> None:
        """Wait until everybody is through with a stage. Who isn't in time is not met any more."""
        self._store.set("%s %d" % (stage, self._rank), "1")
        end = time.monotonic() + 2 * PAIR_SECONDS
        for rank in range(len(self._names)):
            if rank not in self._gone:
                left = max(0.01, end - time.monotonic())
                try:
                    self._store.wait(["%s %d" % (stage, rank)], timedelta(seconds=left))
                except Exception:  # torch has several classes for it
                    self._gone.add(rank)

    def _pair(self, turn: int, other: int) -> Pair:
        mine, theirs = self._names[self._rank], self._names[other]
        low, high = sorted((self._rank, other))
        try:
            with _Group(self, "pair %d %d %d" % (turn, low, high), [low, high]) as group:
                latency, speed = group.measured()
            return Pair(mine, theirs, round(latency * 1e6, 1), round(speed / 1e6, 1), group.wrong)
        except Exception as error:
            return Pair(mine, theirs, error=_text(error))

    def _together(self, rail: int) -> str:
        ranks = [rank for rank in range(len(self._names)) if rank not in self._gone]
        with _Group(self, "all %d" % rail, ranks, rail) as group:
            latency, speed = group.measured()
        if group.wrong:
            raise ValueError(group.wrong)
        told = "%d nodes, %.0f us, %.0f MB/s" % (len(ranks), latency * 1e6, speed / 1e6)
        return told if self._backend == "gloo" else "GPU %d: %s" % (rail, told)


class _Group:
    """A process group of some nodes. Raises whatever torch does.

    Wrong numbers are kept in ``wrong``: who stopped for them would leave the others alone, whose sums are right.
    """

    def __init__(self, parent: _Collective, key: str, ranks: list[int], rail: int = 0) -> None:
        self._torch, self._dist = parent._torch, parent._dist
        self._ranks, self._bytes = ranks, parent._bytes
        self._place = ranks.index(parent._rank)
        self.wrong = ""
        self._where = self._torch.device("cuda", rail) if parent._backend == "nccl" else self._torch.device("cpu")
        if parent._backend == "nccl":
            self._torch.cuda.set_device(rail)
        self._dist.init_process_group(
            parent._backend,
            store=self._dist.PrefixStore(key, parent._store),
            rank=self._place,
            world_size=len(ranks),
            timeout=timedelta(seconds=PAIR_SECONDS),
        )

    def __enter__(self) -> _Group:
        return self

    def __exit__(self, *_: object) -> None:
        self._dist.destroy_process_group()

    def measured(self) -> tuple[float, float]:
        """Seconds of a small all-reduce (the median), and bytes a second over a link.

        The latter as NCCL's own tests count them: each node sends 2 (n - 1) / n of the vector.
        """
        times = sorted(self._reduced(SMALL) for _ in range(TURNS))
        count = len(self._ranks)
        seconds = min(self._reduced(self._bytes // 4) for _ in range(3))
        return times[TURNS // 2], 2.0 * (count - 1) / count * self._bytes / seconds

    def _reduced(self, length: int) -> float:
        """One all-reduce, every number of which is looked at; returns its seconds."""
        pattern = self._torch.arange(length, dtype=self._torch.int32, device=self._where) % PRIME + 1
        vector, count = pattern * (self._place + 1), len(self._ranks)
        self._wait()
        began = time.perf_counter()
        self._dist.all_reduce(vector)
        self._wait()
        seconds = time.perf_counter() - began
        wrong = (vector != pattern * (count * (count + 1) // 2)).nonzero().flatten()
        if wrong.numel():
            at = int(wrong[0])
            right = int(pattern[at]) * (count * (count + 1) // 2)
            told = "%d of %d sums are wrong: %d is %d instead of %d"
            self.wrong = self.wrong or told % (wrong.numel(), length, at, int(vector[at]), right)
        return max(seconds, 1e-9)

    def _wait(self) -> None:
        if self._where.type != "cpu":
            self._torch.cuda.synchronize(self._where)


def _prepare(backend: str, host: str) -> None:
    """Errors instead of an abort; gloo on the interface that the nodes know each other by, unless the job says one."""
    if backend == "nccl":
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        return
    interface = interface_of(host)
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def interface_of(host: str) -> str:
    """The network interface that has an address; "" if none is known to."""
    import fcntl
    import socket
    import struct

    try:
        address = socket.gethostbyname(host)
    except OSError:
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(asking, 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
            except OSError:
                continue
            own = socket.inet_ntoa(found[20:24])
            if own == address or (own == "127.0.0.1" and address.startswith("127.")):
                return name
    return ""


def _text(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:200]


def _say(**told: Any) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
