"""Preflight: looks at this node before training proper, says each item in a line, and leaves ``preflight.json``.

A short-lived process of its own (``agent.pyz preflight``), started by the supervisor (``gate``), by a probe job, or by
hand. It may crash or hang: whoever started it has a time limit. What it is given is one JSON object:

===============  ==================================================================================================
``set``          ``quick``, ``standard`` or ``deep``
``skip``         items that are left out
``needs``        item -> threshold (a number in the item's own unit)
``commands``     item -> argument list of an own check; code 0 is ok, its last line is the value. (Own checks may also
                 be entry points of the group ``airflow_ft.preflight`` in the training's image)
``peers, rank``  the nodes of the job as [name, host, port], and which one this is: for what nodes do together
``meet``         instead of peers: ``count`` nodes meet where the environment says that node 0 is (``preflight_meet``)
``shared``       true if nodes of the job share a machine: then its speed is no node's
``seconds``      the time limit for all of it
others           ``checkpoints``, ``hosts``, ``root``, ``shm``, ``cache``, ``sys``, ``proc``, ``kmsg``: see ``Place``
===============  ==================================================================================================

Exit code: 0, or ``EXIT_FAILED`` when an item failed. An item that raises or takes too long is ``skipped``
and says why.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Iterator

from . import preflight_gpu as gpu
from . import preflight_host as host
from . import preflight_meet as meet
from . import preflight_together as together
from .preflight_host import Place
from .preflight_result import EXIT_FAILED, FAILED, WHOLE, Result, failed, ok, skipped

ITEM_SECONDS = 8.0
SECONDS = 30.0  # all of it: the goal for the standard set

Item = Callable[[Place], Result]
ITEMS: dict[str, tuple[str, Item]] = {
    "dns": ("quick", host.dns),
    "disk-size root": ("quick", lambda place: host.disk_size(place, "root")),
    "disk-size shm": ("quick", lambda place: host.disk_size(place, "shm")),
    "disk-size cache": ("quick", lambda place: host.disk_size(place, "cache")),
    "disk-free root": ("quick", host.disk_free),
    "ulimit": ("quick", host.ulimit),
    "gpu-check": ("quick", gpu.gpu_check),
    "memory-free": ("quick", host.memory_free),
    "checkpoint": ("quick", host.checkpoint),
    "gpu-health": ("standard", gpu.nvml_health),
    "cuda-match": ("standard", gpu.cuda_match),
    "xid": ("standard", host.xid),
    "infiniband": ("standard", host.infiniband),
    "nfs": ("standard", host.nfs),
    "shm-leftovers": ("standard", host.shm_leftovers),
    "leftover-processes": ("standard", host.leftover_processes),
    "cpu-limits": ("standard", host.cpu_limits),
}
SETS = ("quick", "standard", "deep")
# Entry points of this group are items, by their name: a function that takes the configuration and returns a dictionary
# with ``ok`` (True, False, or None: can't be looked at here), ``value``, ``need`` and ``advice``.
GROUP = "airflow_ft.preflight"
_PLACE = ("node", "root", "shm", "cache", "checkpoints", "host_files", "sys", "proc", "kmsg")


def main(config: dict[str, Any], directory: str | None = None, say: Callable[[str], None] = print) -> int:
    """Run a set; returns the exit code."""
    began = time.monotonic()
    results = run(config, say, directory)
    bad = [result for result in results if result.status == FAILED]
    say(_end(results, len(bad), time.monotonic() - began).line())
    record = {
        "version": 1,
        "node": config.get("node", ""),
        "ok": not bad,
        "seconds": round(time.monotonic() - began, 2),
        "at": time.time(),
        "items": [list(result) for result in results],
    }
    if directory:
        from .state import write_atomic

        try:
            write_atomic(os.path.join(directory, "preflight.json"), record)
        except OSError as error:
            say("ft-agent: preflight.json can't be written: %s" % error)
    return EXIT_FAILED if bad else 0


def _end(results: list[Result], bad: int, seconds: float) -> Result:
    """The last line: only a preflight that has one has looked at everything."""
    text = "%d of %d items failed, %.1f s" % (bad, len(results), seconds)
    end = failed(text, "all hold", "See the failed items.") if bad else ok(text, "all hold")
    return end._replace(item=WHOLE)


def run(config: dict[str, Any], say: Callable[[str], None], directory: str | None = None) -> list[Result]:
    """Run a set; says each line as soon as it is known."""
    deadline = time.monotonic() + float(config.get("seconds", SECONDS))
    level = SETS.index(str(config.get("set", "standard")))
    place = _place(config)
    left_out = set(config.get("skip", ()))
    results = []
    for name, (least, look) in ITEMS.items():
        if SETS.index(least) <= level and name not in left_out:
            results.append(_limited(name, lambda look=look: look(place), deadline))  # type: ignore[misc]
            say(results[-1].line())
    for name, plugged in _plugged():
        if name not in left_out:
            results.append(_limited(name, lambda ask=plugged: _judged(ask(dict(config))), deadline))  # type: ignore[misc]
            say(results[-1].line())
    for name, command in dict(config.get("commands", {})).items():
        results.append(_limited(name, lambda command=command: _own(command), deadline))  # type: ignore[misc]
        say(results[-1].line())
    if level >= SETS.index("standard"):
        if config.get("meet") and not config.get("peers"):
            others, result = meet.meet(config, deadline, directory)
            config = {**config, **others}
            results.append(result)
            say(result.line())
        for result in together.look(config, level >= SETS.index("deep"), deadline):
            if result.item not in left_out:
                results.append(result)
                say(result.line())
    return results


def _place(config: dict[str, Any]) -> Place:
    given = {name: str(config[name]) for name in _PLACE if config.get(name)}
    needs = {str(item): float(value) for item, value in dict(config.get("needs", {})).items()}
    hosts = tuple(str(name) for name in config.get("hosts", ()))
    return Place(needs=needs, hosts=hosts, marker=os.environ.get("FT_JOB", ""), **given)


def _limited(name: str, look: Callable[[], Result], deadline: float) -> Result:
    """One item in a thread, which is left behind if it hangs: the process ends soon anyway."""
    found: list[Result] = []

    def work() -> None:
        try:
            found.append(look())
        except Exception as error:  # an item that can't work here is no reason not to train
            found.append(skipped("can't be looked at: %s: %s" % (type(error).__name__, error)))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    limit = max(0.1, min(ITEM_SECONDS, deadline - time.monotonic()))
    thread.join(limit)
    result = found[0] if found else skipped("no answer within %.0f s" % limit)
    return result._replace(item=name)


def _plugged() -> Iterator[tuple[str, Callable[[dict[str, Any]], Any]]]:
    """Items of other distributions in this image. One that can't be loaded is an item that can't be looked at."""
    try:
        from importlib import metadata

        found: Any = metadata.entry_points()
        # Python 3.8 and 3.9 have a plain dictionary of groups.
        entries = found.select(group=GROUP) if hasattr(found, "select") else found.get(GROUP, ())
    except Exception:  # a broken distribution of somebody's must not keep the items of ours from being looked at
        return
    for entry in sorted(set(entries), key=lambda one: str(one.name)):
        yield str(entry.name), lambda config, entry=entry: entry.load()(config)  # type: ignore[misc]


def _judged(answer: Any) -> Result:
    """What an item of somebody else's returned: see ``GROUP``."""
    if not isinstance(answer, dict) or answer.get("ok", "") not in (True, False, None):
        return skipped("it returned %.80r: give a dictionary with ok (True, False or None) and value" % (answer,))
    value, need = answer.get("value", ""), answer.get("need", "")
    if answer["ok"] is None:
        return skipped(value)
    return ok(value, need) if answer["ok"] else failed(value, need, str(answer.get("advice", "")))


def _own(command: Any) -> Result:
    words = [str(word) for word in command]
    limit = ITEM_SECONDS - 0.5
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return skipped("%s: no answer within %.1f s" % (words[0], limit))
    text = (done.stdout or done.stderr).decode("utf-8", "replace").strip().splitlines()
    value = text[-1][:200] if text else "code %d" % done.returncode
    if done.returncode == 0:
        return ok(value, "code 0")
    return failed(value, "code 0, not %d" % done.returncode, "Your own check %s failed here." % words[0])


def main_of_command(text: str, directory: str | None) -> int:
    """``agent.pyz preflight``: the configuration as JSON, or ``@file``."""
    try:
        if text.startswith("@"):
            with open(text[1:]) as file:
                text = file.read()
        config = json.loads(text)
        if not isinstance(config, dict) or config.get("set", "standard") not in SETS:
            raise ValueError("give an object; set is one of %s" % ", ".join(SETS))
    except (OSError, ValueError) as error:
        sys.stderr.write("ft-agent: preflight: %s\n" % error)
        return 2

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    code = main(config, directory, say)
    sys.stdout.flush()
    os._exit(code)  # threads that hang are left behind
