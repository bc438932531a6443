"""Where every Python process of the tree is right now: the evidence of a hang, taken before anything is killed.

Run as a short-lived process (`agent.pyz stacks`, or a fork of the supervisor on an order); writes ``stacks.json``:
``{"version", "at", "number", "ranks": [{"pid", "rank", "via", "state"}], "groups": [{"pids", "ranks", "stack",
"stopped"}]}``. "state" is the kernel's letter: T is stopped (SIGSTOP), t is traced, D hangs in the kernel. Two ways, in
this order, each tried and not deduced:

- ``py-spy dump --nonblocking``: no side effect;
- faulthandler on a real-time signal, into the file that our sitecustomize opened. It can interrupt a blocking C call,
  so it is for processes that are about to be killed (``by_signal=False`` forbids it). The default action of an
  unregistered real-time signal is death: it is sent only where /proc shows it as caught *and* our file exists.

``peek`` looks at those processes alone whose main thread is on a CPU: a signal interrupts no blocking call there, so it
may be sent to a training that is perhaps healthy. Who is not on a CPU is not asked.

Equal stacks (addresses and ids removed) are one group, so the answer stays small for thousands of ranks. Stopped
processes are a group of their own, whatever their stack, if it could be read at all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from typing import Any

from . import flight, processes, state

MAX_BYTES = 64 * 1024
# A dump of 8 ranks took 0.1 s on a busy machine; who doesn't answer within this is stopped or in the kernel.
SIGNAL_SECONDS = 3.0
SPY_SECONDS = 5.0
_QUIET_SECONDS = 0.2
STOPPED = ("T", "t")


def dump(directory: str, by_signal: bool = True, number: int | None = None) -> dict[str, Any]:
    """Dump, group, write stacks.json (if the disk allows) and return its content."""
    pids = _python_processes(directory)
    states = {pid: _state(pid) for pid in pids}  # before anything of ours disturbs them
    texts = {pid: (text, "py-spy") for pid, text in _by_spy(pids).items()}
    if by_signal:
        rest = [pid for pid in pids if pid not in texts]
        texts.update({pid: (text, "signal") for pid, text in _by_signal(directory, rest).items()})
    ranks = {pid: _rank(pid) for pid in pids}
    result = {
        "version": state.VERSION,
        "at": time.time(),
        "number": number,
        "ranks": [
            {"pid": pid, "rank": ranks[pid], "via": texts.get(pid, ("", None))[1], "state": states[pid]} for pid in pids
        ],
        "groups": _group({pid: text for pid, (text, _) in texts.items()}, ranks, states),
        "flight": flight.read(ranks),
    }
    _fit(result)
    try:
        state.write_atomic(os.path.join(directory, "stacks.json"), result)
    except OSError:  # the caller still has it
        return result
    return result


def peek(directory: str, by_signal: bool = True) -> dict[str, Any]:
    """The grouped stacks of the processes that are on a CPU right now; nothing is written or killed."""
    pids = [pid for pid in _python_processes(directory) if _state(pid) == "R"]
    texts = _by_spy(pids)
    if by_signal:
        rest = [pid for pid in pids if pid not in texts and _state(pid) == "R"]
        texts.update(_by_signal(directory, rest))
    ranks = {pid: _rank(pid) for pid in pids}
    result = {"version": state.VERSION, "at": time.time(), "groups": _group(texts, ranks, dict.fromkeys(texts, "R"))}
    _fit(dict(result, ranks=[]))
    return result


def normalized(text: str) -> str:
    """A stack without what differs between equal ones: addresses, thread ids, the process's head line."""
    lines = [line.rstrip() for line in text.splitlines() if not line.startswith("Process ")]
    text = re.sub(r"0x[0-9a-fA-F]+", "", "\n".join(lines))
    return re.sub(r"^(Current thread|Thread)\s+\d*\s*", r"\1 ", text, flags=re.MULTILINE).strip()


def _python_processes(directory: str) -> list[int]:
    """The Python processes of the agent's tree, without the agent, ourselves and our helpers."""
    found = state.read_state(directory) or {}
    tree: list[int] = []
    for key in ("agent", "child"):
        pid = found.get(key)
        if pid and processes.is_alive(pid, found.get(key + "_start")):
            tree += [found["child"]] if key == "child" else []
            tree += processes.descendants(pid)
    tree += processes.with_marker("FT_AGENT_DIR", directory)  # the agent died: its orphans belong to nobody
    own = {os.getpid(), found.get("agent"), *processes.descendants(os.getpid())}
    return [pid for pid in dict.fromkeys(tree) if pid not in own and _is_python(pid)]


def _is_python(pid: int) -> bool:
    try:
        if os.path.basename(os.readlink("/proc/%d/exe" % pid)).startswith(("python", "pypy")):
            return True
        with open("/proc/%d/maps" % pid, "rb") as file:
            return b"/libpython" in file.read()
    except OSError:
        return False


def _by_spy(pids: list[int]) -> dict[int, str]:
    """Stacks by py-spy, all at once; those that it can't read are left out."""
    running: dict[int, Any] = {}
    for pid in pids:
        tool = _find_spy(pid)
        if tool:
            try:
                running[pid] = subprocess.Popen(
                    [tool, "dump", "--nonblocking", "--pid", str(pid)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            except OSError:
                continue
    texts, end = {}, time.monotonic() + SPY_SECONDS
    for pid, process in running.items():
        try:
            output, _ = process.communicate(timeout=max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            continue
        text = output.decode("utf-8", "replace")
        if process.returncode == 0 and "Thread" in text:
            texts[pid] = text
    return texts


def _find_spy(pid: int) -> str | None:
    """py-spy on our path, or beside the interpreter of the process."""
    folders = []
    try:
        folders.append(os.path.dirname(os.readlink("/proc/%d/exe" % pid)))
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            folders.append(os.path.dirname(os.fsdecode(file.read().split(b"\0")[0])))
    except OSError:
        return None
    beside = os.pathsep.join(folder for folder in folders if os.path.isabs(folder))
    return shutil.which("py-spy") or (shutil.which("py-spy", path=beside) if beside else None)


def _by_signal(directory: str, pids: list[int]) -> dict[int, str]:
    """Stacks by faulthandler's signal, of those processes that are known to catch it."""
    number = _signal_number()
    sizes: dict[int, int] = {}
    for pid in pids:
        path = _file(directory, pid)
        started = processes.start_ticks(pid)
        if os.path.exists(path) and _catches(pid, number):
            sizes[pid] = os.path.getsize(path)
            if not processes.send(pid, started, number):
                del sizes[pid]
    texts: dict[int, str] = {}
    quiet, last, end = 0.0, -1, time.monotonic() + SIGNAL_SECONDS
    while sizes and time.monotonic() < end and not (len(texts) == len(sizes) and quiet >= _QUIET_SECONDS):
        time.sleep(0.05)
        texts = _grown(directory, sizes)
        total = sum(len(text) for text in texts.values())
        quiet, last = (quiet + 0.05, last) if total == last else (0.0, total)
    return texts


def _signal_number() -> int:
    try:
        return int(os.environ.get("FT_SIGNAL") or signal.SIGRTMAX - 5)
    except ValueError:
        return signal.SIGRTMAX - 5


def _catches(pid: int, number: int) -> bool:
    try:
        with open("/proc/%d/status" % pid) as file:
            caught = [line.split()[1] for line in file if line.startswith("SigCgt:")]
        return bool(caught) and bool(int(caught[0], 16) >> (number - 1) & 1)
    except (OSError, ValueError):
        return False


def _grown(directory: str, sizes: dict[int, int]) -> dict[int, str]:
    texts = {}
    for pid, size in sizes.items():
        try:
            with open(_file(directory, pid), "rb") as file:
                file.seek(size)
                text = file.read(MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        if text:
            texts[pid] = text
    return texts


def _file(directory: str, pid: int) -> str:
    return os.path.join(directory, "stacks", "%d.txt" % pid)


def _rank(pid: int) -> int | None:
    text = processes.variable(pid, "RANK") or ""
    return int(text) if text.isdigit() and text.isascii() else None


def _state(pid: int) -> str | None:
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read().rsplit(b")", 1)[1].split()[0].decode("ascii", "replace")
    except (OSError, IndexError):
        return None


def _group(texts: dict[int, str], ranks: dict[int, int | None], states: dict[int, str | None]) -> list[dict[str, Any]]:
    """Equal stacks together, the largest group first; the stopped apart, also those that couldn't be read."""
    groups: dict[tuple[str, bool], list[int]] = {}
    for pid in states:
        stopped = states[pid] in STOPPED
        if stopped or pid in texts:
            groups.setdefault((normalized(texts.get(pid, "")), stopped), []).append(pid)
    found = []
    for (stack, stopped), pids in sorted(groups.items(), key=lambda item: -len(item[1])):
        known = sorted(rank for rank in (ranks[pid] for pid in pids) if rank is not None)
        found.append({"pids": sorted(pids), "ranks": known, "stack": stack, "stopped": stopped})
    return found


def _fit(result: dict[str, Any]) -> None:
    """Cut the stacks, then the groups and the list of processes, until the whole is at most 64 kB."""
    longest = MAX_BYTES
    if len(json.dumps(result.get("flight", []))) > MAX_BYTES // 4:
        result["flight"] = []
    while len(json.dumps(result)) > MAX_BYTES:
        result["truncated"] = True
        longest //= 2
        for group in result["groups"]:
            group["stack"] = group["stack"][:longest]
        if longest < 1000:
            del result["groups"][max(1, len(result["groups"]) // 2) :]
            del result["ranks"][max(1, len(result["ranks"]) // 2) :]
            for group in result["groups"]:
                group["pids"], group["ranks"] = group["pids"][:1000], group["ranks"][:1000]
