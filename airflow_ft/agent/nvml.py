"""The readings of this node's GPUs that tell work from standing still, asked of NVML's library itself.

Through ctypes, not pynvml: the agent runs without site-packages (`python -I -S`). Used by `vitals` in a short-lived
process. Whatever is missing (library, driver, a call that a device doesn't know) is an unknown number, never an error.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any, NamedTuple

LIBRARY = "libnvidia-ml.so.1"
MOST_PROCESSES = 256
_reading = threading.Lock()  # a driver that hangs keeps one thread of its caller, not one a second


class Gpu(NamedTuple):
    """One device: utilisation in percent, power in watts, and the processes that compute on it."""

    uuid: str
    percent: float | None
    watts: float | None
    pids: tuple[int, ...]


class _Utilisation(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Process(ctypes.Structure):  # nvmlProcessInfo_t since version 2
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


def read() -> list[Gpu]:
    """All devices, in NVML's order; none where there is no NVML, or where an earlier question has no answer yet."""
    if not _reading.acquire(blocking=False):
        return []
    try:
        return _read_all()
    finally:
        _reading.release()


def _read_all() -> list[Gpu]:
    try:
        library = ctypes.CDLL(LIBRARY)
        if library.nvmlInit_v2() != 0:
            return []
    except (OSError, AttributeError):
        return []
    try:
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return []
        return [_read(library, index) for index in range(count.value)]
    except AttributeError:
        return []
    finally:
        library.nvmlShutdown()


def _read(library: Any, index: int) -> Gpu:
    device = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)) != 0:
        return Gpu("", None, None, ())
    used, milliwatts, uuid = _Utilisation(), ctypes.c_uint(), ctypes.create_string_buffer(96)
    has_percent = library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(used)) == 0
    has_watts = library.nvmlDeviceGetPowerUsage(device, ctypes.byref(milliwatts)) == 0
    library.nvmlDeviceGetUUID(device, uuid, ctypes.c_uint(len(uuid)))
    return Gpu(
        uuid.value.decode("ascii", "replace"),
        float(used.gpu) if has_percent else None,
        round(milliwatts.value / 1000, 1) if has_watts else None,
        _pids(library, device),
    )


def _pids(library: Any, device: Any) -> tuple[int, ...]:
    for version in ("_v3", "_v2"):  # the same struct
        try:
            ask = getattr(library, "nvmlDeviceGetComputeRunningProcesses" + version)
        except AttributeError:
            continue
        count, found = ctypes.c_uint(MOST_PROCESSES), (_Process * MOST_PROCESSES)()
        if ask(device, ctypes.byref(count), found) == 0:
            return tuple(int(process.pid) for process in found[: count.value])
    return ()
