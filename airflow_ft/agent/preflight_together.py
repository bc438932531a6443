"""What nodes do together, in this order: sockets, one folder for checkpoints, torch's own backend; and its verdict.

Torch is only started when all nodes have answered and every pair could talk: what is broken already would be waited for
once more. A node without peers measures its own GPUs.
"""

from __future__ import annotations

import time
from typing import Any

from . import preflight_child as child
from . import preflight_folder as folder
from . import preflight_speed as speed
from . import preflight_torch_verdict as torch_verdict
from . import preflight_verdict as verdict
from .preflight_comm import Check, Peer
from .preflight_result import Result, skipped

SOCKET_BYTES = {False: 8 << 20, True: 64 << 20}  # in a deep look: long enough to see a link that loses packets


def look(config: dict[str, Any], deep: bool, deadline: float) -> list[Result]:
    """Return the items that nodes look at together."""
    peers = [Peer(str(name), str(address), int(port)) for name, address, port in config.get("peers", ())]
    shared = config.get("shared") is True
    device, why = child.torch_device(deep, shared)
    if len(peers) < 2:
        return [_own_gpus(str(config.get("node", "")), device, why, deadline)]
    rank = int(config["rank"])
    me, names = peers[rank].name, [peer.name for peer in peers]
    mark = folder.Mark(str(config.get("checkpoints") or ""), me)
    found = speed.measured(shared)
    facts = {
        "cpu_speed": found.rounds,
        "cpu_limited": found.limited,
        "cpu_others": found.others,
        "device": device,
        "why": why,
        "mark": mark.name,
    }
    try:
        check = Check(peers, rank, facts, deadline - 1.0)
    except OSError as error:
        mark.remove()
        return [skipped("%s:%d: %s" % (peers[rank].host, peers[rank].port, error))._replace(item="comm")]
    known = check.run(SOCKET_BYTES[deep])
    results = verdict.judge(known, names, me)
    marks = {name: str(told["facts"].get("mark", "")) for name, told in known.items()}
    backend, reason = torch_verdict.backend_of(known, names)
    told: dict[str, Any] = {"sees": mark.sees(marks)}
    if backend:
        told.update(_asked(check, peers, rank, backend, deadline))
    second = check.tell(told)
    results.append(folder.judge(marks, {name: one.get("sees", ()) for name, one in second.items()}, me))
    results += torch_verdict.judge(second, names, me, backend, reason, shared)
    time.sleep(min(0.5, max(0.0, deadline - time.monotonic())))  # the others may still ask for what is known here
    check.close()
    mark.remove()
    return results


def _asked(check: Check, peers: list[Peer], rank: int, backend: str, deadline: float) -> dict[str, Any]:
    """Run torch's part; what is left of the time for telling each other is a few seconds."""
    end = deadline - 3.0
    device = "cuda" if backend == "nccl" else "cpu"
    names = [peer.name for peer in peers]
    config = {"device": device, "speed": device == "cuda", "peers": names, "rank": rank, "backend": backend}
    started = child.Child({**config, "host": peers[rank].host, "seconds": end - time.monotonic()})
    if rank == 0:
        check.publish_port(started.store_port(end))
    else:
        started.meet(peers[0].host, check.port_of(0, end))
    return started.ended(end, names[rank])


def _own_gpus(me: str, device: str, why: str, deadline: float) -> Result:
    if device != "cuda":
        return torch_verdict.gpu_speed({}, me, why)
    told = child.Child({"device": device, "speed": True}).ended(deadline - 1.0, me)
    return torch_verdict.gpu_speed({me: told}, me, "")
