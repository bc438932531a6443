"""Who the others are, where the backend can't say so before they run: on Kubernetes a pod's address comes with the pod.

Training has the same question, and its launchers' answer is in the environment: where node 0 is, and which one this is.
Node 0 takes down who comes, with the address that it comes from, and tells everybody all of them, as soon as all have
come or the time for it is over. Who comes later finds nobody, and is looked at alone.

The pods of a probe job have no such environment: whoever has started it tells each of them, in a file
(``told``).
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any, Mapping

from .preflight_comm import read_message, send_message
from .preflight_result import Result, ok, skipped

ITEM = "peers"
PORT = 21763  # the meeting; nodes listen to each other on the next one. No well-known program's
FILE = "meet.json"  # in the agent's folder
SHARE = 0.4  # of the time: containers of one job start some seconds apart, the rest is for looking
HOSTS = ("PET_MASTER_ADDR", "MASTER_ADDR")  # torchrun's options as variables first: operators set them for it
RANKS = ("PET_NODE_RANK", "RANK", "JOB_COMPLETION_INDEX")


def meet(
    config: dict[str, Any], deadline: float, directory: str | None = None, env: Mapping[str, str] = os.environ
) -> tuple[dict[str, Any], Result]:
    """Return ``peers`` and ``rank`` for the configuration (nothing if nobody was met), and how that went."""
    end = time.monotonic() + SHARE * (deadline - time.monotonic())
    told = config["meet"]
    if told.get("told") and directory:
        told = {**told, **_told(os.path.join(directory, FILE), end)}
    count, port = int(told["count"]), int(told.get("port", PORT))
    host = str(told.get("host") or next((env[name] for name in HOSTS if env.get(name)), ""))
    rank = str(told.get("rank", next((env[name] for name in RANKS if env.get(name)), "")))
    if not host or not rank.isdigit():
        return {}, _named(skipped("neither %s nor a rank is set: nodes are looked at alone" % HOSTS[-1]))
    name = str(config.get("node") or socket.gethostname())
    try:
        peers = _host(name, count, port, end) if int(rank) == 0 else _guest(name, int(rank), host, port, end)
    except (OSError, ValueError) as error:
        return {}, _named(skipped("node 0 (%s:%d) can't be met: %s" % (host, port, error)))
    ranks = [int(peer[0]) for peer in peers]
    if int(rank) not in ranks or len(peers) < 2:
        return {}, _named(skipped("%d of %d nodes came" % (len(peers), count)))
    found = {"peers": [[str(peer[1]), str(peer[2]), port + 1] for peer in peers], "rank": ranks.index(int(rank))}
    if len(peers) < count:
        return found, _named(skipped("%d of %d nodes came in time: they are looked at" % (len(peers), count)))
    return found, _named(ok("%d of %d nodes" % (len(peers), count), "all nodes"))


def _told(path: str, end: float) -> dict[str, Any]:
    """Wait for the file that says where node 0 is; nothing if it never comes."""
    while time.monotonic() < end:
        try:
            with open(path) as file:
                return dict(json.load(file))
        except (OSError, ValueError, TypeError):
            time.sleep(0.1)
    return {}


def _host(name: str, count: int, port: int, end: float) -> list[list[Any]]:
    """Take down who comes, until all are there; then tell them."""
    came: dict[int, tuple[list[Any], socket.socket]] = {}
    own = ""
    with socket.create_server(("", port)) as server:
        while len(came) < count - 1 and time.monotonic() < end:
            server.settimeout(max(0.05, end - time.monotonic()))
            try:
                link, address = server.accept()
                link.settimeout(2.0)
                guest = read_message(link)
                came[int(guest["rank"])] = ([int(guest["rank"]), str(guest["name"]), address[0]], link)
                own = link.getsockname()[0]  # as the others reach this node
            except (OSError, ValueError, KeyError, TypeError):
                continue  # nobody came, or a stranger
    peers = [[0, name, own]] + [guest for guest, _ in (came[rank] for rank in sorted(came))]
    for _, link in came.values():
        try:
            send_message(link, peers)
        except OSError:
            pass  # seen when nodes look at each other
        link.close()
    return peers


def _guest(name: str, rank: int, host: str, port: int, end: float) -> list[list[Any]]:
    """Come to node 0, and wait for its answer. Raises OSError."""
    while True:
        left = end - time.monotonic()
        try:
            link = socket.create_connection((host, port), max(0.05, min(left, 2.0)))
            break
        except OSError:  # its container isn't there yet, or its name isn't
            if left <= 0:
                raise
            time.sleep(0.2)
    with link:
        send_message(link, {"rank": rank, "name": name})
        link.settimeout(max(1.0, end - time.monotonic()) + 5.0)
        answer = read_message(link)
    if not isinstance(answer, list):
        raise ValueError("a stranger answers")
    return answer


def _named(result: Result) -> Result:
    return result._replace(item=ITEM)
