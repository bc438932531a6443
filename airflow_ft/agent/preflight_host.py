"""Preflight items about the host: names, disks, limits, memory, left-overs, the kernel's log, network ports.

Every function takes a ``Place`` (where things are on this machine, so that a test can show it another machine) and
returns one ``Result`` without a name. It may raise: the runner turns that into ``skipped``. Thresholds stand beside
their source; those of M8 are ModelArts' environment checks for training.
"""

from __future__ import annotations

import glob
import os
import re
import resource
import socket
import time
from typing import Any, NamedTuple

from .preflight_result import Result, failed, ok, skipped

GB = 1000**3
# M8: more than these.
ROOT_GB, SHM_GB, CACHE_GB = 32, 1, 32
ULIMITS = (
    ("max locked memory", resource.RLIMIT_MEMLOCK, 1024, 16000),  # kB, as `ulimit -l` says it
    ("open files", resource.RLIMIT_NOFILE, 1, 1000000),
    ("stack size", resource.RLIMIT_STACK, 1024, 8000),
    ("max user processes", resource.RLIMIT_NPROC, 1, 1000000),
)
# Python, torch and one small checkpoint; a gut feeling.
FREE_GB = 1.0
# A rank of torch alone takes 0.8 GB (agent-side measurement); a gut feeling above that.
MEMORY_GB = 1.0
# Xids after which NVIDIA's guide says to reset or replace the GPU (XID errors: "GPU reset", "contact support").
FATAL_XIDS = {48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120, 136, 140, 143}
# How far back a kernel line counts: an older one has been dealt with, or has no effect. A gut feeling.
XID_SECONDS = 24 * 3600.0
SHM_LEFT_GB = 1.0
NFS_SECONDS = 5.0
_NETWORK_FILES = ("nfs", "lustre", "ceph", "fuse.juicefs")


class Place(NamedTuple):
    """Where things are. ``node`` replaces {node} in paths."""

    node: str = ""
    root: str = "/"
    shm: str = "/dev/shm"
    cache: str = "/cache"
    checkpoints: str = ""
    host_files: str = "/etc/volcano/*.host"
    hosts: tuple[str, ...] = ()
    sys: str = "/sys"
    proc: str = "/proc"
    kmsg: str = "/dev/kmsg"
    needs: dict[str, float] = {}  # noqa: B006 - never changed
    marker: str = ""  # FT_JOB of this very job

    def need(self, item: str, default: float) -> float:
        """The threshold of an item: the configured one, or the default."""
        return float(self.needs.get(item, default))


def dns(place: Place) -> Result:
    """Every domain of the host files (Volcano writes one name a line for each task) and of the list resolves."""
    names = list(place.hosts)
    for path in sorted(glob.glob(place.host_files)):
        with open(path) as file:
            names += [line.split("#")[0].split()[-1] for line in file if line.split("#")[0].strip()]
    if not names:
        return skipped("no %s and no list of hosts" % place.host_files)
    missing = []
    for name in dict.fromkeys(names):
        try:
            socket.getaddrinfo(name, None)
        except OSError as error:
            missing.append("%s (%s)" % (name, error.strerror or error))
    if missing:
        advice = "Look at /etc/resolv.conf and the cluster's DNS: these names don't resolve on this node."
        return failed(", ".join(missing)[:300], "all %d resolve" % len(names), advice)
    return ok("%d of %d resolve" % (len(names), len(names)), "all resolve")


def disk_size(place: Place, which: str) -> Result:
    """The size of a volume."""
    path = {"root": place.root, "shm": place.shm, "cache": place.cache}[which].replace("{node}", place.node)
    if not os.path.isdir(path):
        return skipped("there is no %s" % path)
    least = place.need("disk-size %s" % which, {"root": ROOT_GB, "shm": SHM_GB, "cache": CACHE_GB}[which])
    disk = os.statvfs(path)
    size = disk.f_blocks * disk.f_frsize / GB
    if size > least:
        return ok("%.1f GB" % size, "> %g GB" % least)
    advice = {
        "root": "Give the container or node a larger root disk.",
        "shm": "Give the container more shared memory (an emptyDir of medium Memory on /dev/shm).",
        "cache": "Mount a larger volume for %s." % path,
    }[which]
    return failed("%.1f GB" % size, "> %g GB" % least, advice)


def disk_free(place: Place) -> Result:
    """Room on the root disk, for logs and temporary files."""
    return _free(place.root.replace("{node}", place.node), place.need("disk-free root", FREE_GB))


def _free(path: str, least: float) -> Result:
    disk = os.statvfs(path)
    free = disk.f_bavail * disk.f_frsize / GB
    if disk.f_favail == 0 and disk.f_files:
        return failed("0 inodes on %s" % path, "> 0", "Remove files there: the disk has no inode left.")
    if free > least:
        return ok("%.2f GB on %s" % (free, path), "> %g GB" % least)
    return failed("%.2f GB on %s" % (free, path), "> %g GB" % least, "Remove files there, or use another node.")


def checkpoint(place: Place) -> Result:
    """The checkpoint folder takes a file of 1 MB, gives it back, and has room."""
    if not place.checkpoints:
        return skipped("no checkpoint folder is configured")
    path = place.checkpoints.replace("{node}", place.node)
    probe = os.path.join(path, ".ft-preflight-%s-%d" % (place.node or socket.gethostname(), os.getpid()))
    data = os.urandom(1 << 20)
    advice = "Make %s writable on this node, or use another node." % path
    try:
        os.makedirs(path, exist_ok=True)
        with open(probe, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with open(probe, "rb") as file:
            if file.read() != data:
                return failed("wrong data read back from %s" % path, "what was written", advice)
    except OSError as error:
        return failed("%s: %s" % (path, error.strerror or error), "writable", advice)
    finally:
        try:
            os.unlink(probe)
        except OSError:
            pass
    return _free(path, place.need("checkpoint", FREE_GB))


def ulimit(place: Place) -> Result:
    """M8: only with InfiniBand, whose drivers pin memory."""
    if not _ib_devices(place):
        return skipped("no InfiniBand")
    low = []
    for name, number, unit, least in ULIMITS:
        soft = resource.getrlimit(number)[0]
        value = soft if soft == resource.RLIM_INFINITY else soft // unit
        if soft != resource.RLIM_INFINITY and value <= place.need("ulimit " + name, least):
            low.append("%s %d" % (name, value))
    need = ", ".join("%s > %d" % (name, least) for name, _, _, least in ULIMITS)
    if low:
        return failed(", ".join(low), need, "Raise them in the container runtime or in limits.conf.")
    return ok("all high enough", need)


def memory_free(place: Place) -> Result:
    """Host memory that a new process can have."""
    with open(os.path.join(place.proc, "meminfo")) as file:
        found = dict(line.split(":", 1) for line in file if ":" in line)
    free = int(found["MemAvailable"].split()[0]) * 1024 / GB
    least = place.need("memory-free", MEMORY_GB)
    if free > least:
        return ok("%.1f GB" % free, "> %g GB" % least)
    return failed("%.1f GB" % free, "> %g GB" % least, "Something else holds this node's memory: find it, or move on.")


def infiniband(place: Place) -> Result:
    """Every port of every adapter is active and its link is up; error counters are told."""
    devices = _ib_devices(place)
    if not devices:
        return skipped("no InfiniBand")
    bad, told, errors = [], [], []
    for device in devices:
        for port in sorted(glob.glob(os.path.join(device, "ports", "*"))):
            name = "%s/%s" % (os.path.basename(device), os.path.basename(port))
            state, physical = _text(port, "state"), _text(port, "phys_state")
            rate = _text(port, "rate")
            told.append("%s %s" % (name, rate))
            if "ACTIVE" not in state or (physical and "LinkUp" not in physical.replace(" ", "")):
                bad.append("%s %s %s" % (name, state, physical))
            for counter in ("symbol_error", "link_downed", "port_rcv_errors", "link_error_recovery"):
                count = _text(os.path.join(port, "counters"), counter)
                if count.isdigit() and int(count) > 0:
                    errors.append("%s %s=%s" % (name, counter, count))
    if bad:
        return failed(
            "; ".join(bad), "ACTIVE, LinkUp", "Have the cable, the transceiver and the switch port looked at."
        )
    least = place.need("ib rate", 0)
    slow = [text for text in told if least and _leading(text.split(" ", 1)[1]) < least]
    if slow:
        return failed("; ".join(slow), ">= %g Gb/s" % least, "The link has trained down: reseat the cable.")
    return ok("; ".join(told + errors), "ACTIVE, LinkUp")


def xid(place: Place) -> Result:
    """Xids of the last day in the kernel's log, where it may be read."""
    lines = _kernel_lines(place.kmsg)
    if lines is None:
        return skipped("%s can't be read" % place.kmsg)
    uptime = float(_text(place.proc, "uptime").split()[0])
    seen = []
    for at, text in lines:
        found = re.search(r"NVRM: Xid \(PCI:([\w:.]+)\): (\d+)", text)
        if found and int(found.group(2)) in FATAL_XIDS and uptime - at <= XID_SECONDS:
            seen.append("Xid %s on %s" % (found.group(2), found.group(1)))
    if seen:
        advice = "Reset or replace the GPU (NVIDIA's Xid guide), then restart the node."
        return failed(", ".join(dict.fromkeys(seen)), "no fatal Xid in 24 h", advice)
    return ok("none", "no fatal Xid in 24 h")


def nfs(place: Place) -> Result:
    """Every network file system answers in time. It is asked from a child that may hang."""
    with open(os.path.join(place.proc, "mounts")) as file:
        mounts = [
            line.split()[1] for line in file if line.split()[2].startswith(("nfs", "lustre", "ceph", "fuse.juicefs"))
        ]
    if not mounts:
        return skipped("no network file system is mounted")
    dead = [path for path in mounts if not _answers(path.replace("\\040", " "))]
    if dead:
        return failed(", ".join(dead), "answers within %g s" % NFS_SECONDS, "Remount it, or restart the node.")
    return ok("%d answer" % len(mounts), "answers within %g s" % NFS_SECONDS)


def shm_leftovers(place: Place) -> Result:
    """Files of dead processes in shared memory: NCCL's, torch's, and others' that nobody maps."""
    held = 0
    for name in os.listdir(place.shm):
        if name.startswith(("nccl-", "torch_", "sem.", "psm_", "vader_segment")):
            try:
                held += os.stat(os.path.join(place.shm, name)).st_size
            except OSError:
                continue
    least = place.need("shm-leftovers", SHM_LEFT_GB)
    if held / GB > least:
        advice = "Remove them once no training runs on this node: rm %s/nccl-* %s/torch_*" % (place.shm, place.shm)
        return failed("%.2f GB" % (held / GB), "<= %g GB" % least, advice)
    return ok("%.2f GB" % (held / GB), "<= %g GB" % least)


def leftover_processes(place: Place) -> Result:
    """Training processes of an earlier attempt of this chain that are still there."""
    if not place.marker:
        return skipped("not started by a backend that marks processes")
    chain = place.marker.rpartition("-a")[0]
    left = []
    for pid in filter(str.isdigit, os.listdir(place.proc)):
        try:
            with open(os.path.join(place.proc, pid, "environ"), "rb") as file:
                words = [word for word in file.read().split(b"\0") if word.startswith((b"FT_JOB=", b"FT_NODE="))]
        except OSError:
            continue
        found = dict(word.decode("utf-8", "replace").split("=", 1) for word in words)
        job = found.get("FT_JOB", "")
        if job.rpartition("-a")[0] == chain and job != place.marker and found.get("FT_NODE") == place.node:
            left.append(pid)
    if left:
        return failed("processes %s" % ", ".join(left[:10]), "none", "Kill them: they may hold a GPU or a port.")
    return ok("none", "none")


def cpu_limits(place: Place) -> Result:
    """What limits the CPU: governor, cgroup quota, affinity. Told, not judged: ``cpu-speed`` compares nodes."""
    told = ["%d CPUs" % len(os.sched_getaffinity(0))]
    governor = _text(os.path.join(place.sys, "devices/system/cpu/cpu0/cpufreq"), "scaling_governor")
    quota = _text(os.path.join(place.sys, "fs/cgroup"), "cpu.max")
    quota = quota or _text(os.path.join(place.sys, "fs/cgroup/cpu"), "cpu.cfs_quota_us")
    told += ["governor %s" % governor] if governor else []
    told += ["quota %s" % quota] if quota and not quota.startswith(("max", "-1")) else []
    if governor == "powersave" and place.need("governor", 0):
        return failed(", ".join(told), "performance", "cpupower frequency-set -g performance")
    return ok(", ".join(told))


# --- helpers ---------------------------------------------------------------------------------------------------------


def _ib_devices(place: Place) -> list[str]:
    return sorted(glob.glob(os.path.join(place.sys, "class/infiniband/*")))


def _text(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name)) as file:
            return file.read(4096).strip()
    except OSError:
        return ""


def _leading(text: str) -> float:
    found = re.match(r"\s*([\d.]+)", text)
    return float(found.group(1)) if found else 0.0


def _kernel_lines(path: str) -> list[tuple[float, str]] | None:
    """Seconds since the boot and text of each record; None if it can't be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    data = b""
    try:
        while len(data) < 8 << 20:
            try:
                chunk = os.read(descriptor, 1 << 16)
            except BlockingIOError:
                break
            except OSError:
                return None if not data else _records(data)
            if not chunk:
                break
            data += chunk
    finally:
        os.close(descriptor)
    return _records(data)


def _records(data: bytes) -> list[tuple[float, str]]:
    found = []
    for line in data.decode("utf-8", "replace").splitlines():
        head, _, text = line.partition(";")
        words: Any = head.split(",")
        if len(words) >= 3 and words[2].isdigit():
            found.append((int(words[2]) / 1e6, text))
    return found


def _answers(path: str) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            os.statvfs(path)
            os.listdir(path)
            os._exit(0)
        finally:
            os._exit(1)
    end = time.monotonic() + NFS_SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.02)
    os.kill(pid, 9)  # in the kernel's hands it may stay; we don't wait for it
    return False
