"""Preflight items about GPUs, through NVML: ``gpu-check`` (mission M8) and what NVML knows about their health.

Fed by pynvml if it can be imported. Without it, and without a device file of NVIDIA's, there is no GPU to look at:
skipped. A driver that can't be spoken to although there are devices is a failure, as is one GPU less than expected.
"""

from __future__ import annotations

import glob
import importlib
import importlib.util
import os
import re
from typing import Any, Callable

from .preflight_host import Place
from .preflight_result import Result, failed, ok, skipped

# Reasons that slow a GPU down although nobody asked for it (nvml.h: nvmlClocksEventReasons). A power cap is normal.
BAD_CLOCKS = ((0x8, "hardware slowdown"), (0x20, "software thermal"), (0x40, "hardware thermal"), (0x80, "power brake"))
FOREIGN_MB = 200.0  # a display server or an exporter takes less; a gut feeling
MB = 1000**2


def gpu_check(place: Place) -> Result:
    """M8: GPUs are detected; as many as are expected, if that is known (needs ``gpus``)."""
    expected = int(place.need("gpus", 0))
    nvml, why = _nvml()
    if nvml is None:
        devices = glob.glob("/dev/nvidia[0-9]*")
        if expected or devices:
            advice = "Look at the driver (nvidia-smi) and the device plugin of this node."
            return failed("0 (%s)" % why, "> 0" if not expected else ">= %d" % expected, advice)
        return skipped("no GPU here: %s" % why)
    count = nvml.nvmlDeviceGetCount()
    if count == 0 or count < expected:
        advice = "A GPU has fallen off the bus or was not given to this job: nvidia-smi, dmesg."
        return failed(count, ">= %d" % (expected or 1), advice)
    return ok("%d GPUs, driver %s" % (count, _word(nvml.nvmlSystemGetDriverVersion())), ">= %d" % (expected or 1))


def nvml_health(place: Place) -> Result:
    """ECC, rows, pages, clocks, PCIe, NVLink, foreign processes, of every GPU."""
    nvml, why = _nvml()
    if nvml is None:
        return skipped(why)
    bad: list[str] = []
    for number in range(nvml.nvmlDeviceGetCount()):
        try:
            device = nvml.nvmlDeviceGetHandleByIndex(number)
        except nvml.NVMLError as error:
            bad.append("GPU %d: %s" % (number, error))
            continue
        for look in _LOOKS:
            try:
                bad += ["GPU %d: %s" % (number, text) for text in look(nvml, device, place)]
            except Exception:  # this GPU, driver or pynvml doesn't know it: the other looks are worth as much
                continue
    if bad:
        advice = "Drain the node and reset the GPU; replace it if it comes again."
        return failed("; ".join(bad)[:600], "no error", advice)
    return ok("%d GPUs healthy" % nvml.nvmlDeviceGetCount(), "no error")


def cuda_match(place: Place) -> Result:
    """The driver knows the CUDA that torch was built for: of the same major version an older driver will do."""
    built = _torch_cuda()
    if not built:
        return skipped("torch can't be imported here, or was built without CUDA")
    nvml, why = _nvml()
    if nvml is None:
        return skipped(why)
    number = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    known = "%d.%d" % (number // 1000, number % 1000 // 10)
    text, need = "driver %s, torch %s" % (known, built), "a driver for CUDA %s.x" % built.split(".")[0]
    if number // 1000 < int(built.split(".")[0]):
        return failed(text, need, "Update the driver of this node, or use a torch that was built for CUDA %s." % known)
    return ok(text, need)


def _torch_cuda() -> str:
    """The CUDA of the torch that is installed, read from its file: importing it takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return ""
    try:
        with open(os.path.join(os.path.dirname(spec.origin), "version.py")) as file:
            found = re.search(r"^cuda\b.*= ['\"](\d+\.\d+)", file.read(), re.M)
    except OSError:
        return ""
    return found.group(1) if found else ""


def _ecc(nvml: Any, device: Any, place: Place) -> list[str]:
    count = nvml.nvmlDeviceGetTotalEccErrors(device, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    return ["%d uncorrected ECC errors" % count] if count > place.need("ecc-uncorrected", 0) else []


def _rows(nvml: Any, device: Any, place: Place) -> list[str]:
    _, uncorrected, pending, failure = nvml.nvmlDeviceGetRemappedRows(device)
    found = ["row remapping is pending: the GPU needs a reset"] if pending else []
    found += ["row remapping failed"] if failure else []
    return found + (["%d rows remapped for uncorrectable errors" % uncorrected] if uncorrected > 8 else [])


def _pages(nvml: Any, device: Any, place: Place) -> list[str]:
    pending = nvml.nvmlDeviceGetRetiredPagesPendingStatus(device)
    return ["page retirement is pending: the GPU needs a reset"] if pending else []


def _clocks(nvml: Any, device: Any, place: Place) -> list[str]:
    reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device)
    return ["throttled: %s" % text for bit, text in BAD_CLOCKS if reasons & bit]


def _persistence(nvml: Any, device: Any, place: Place) -> list[str]:
    """Without it the driver is loaded anew for each process: slow, not wrong. Judged where it is needed."""
    off = nvml.nvmlDeviceGetPersistenceMode(device) == 0
    return ["persistence mode is off"] if off and place.need("persistence", 0) else []


def _pcie(nvml: Any, device: Any, place: Place) -> list[str]:
    width, most = nvml.nvmlDeviceGetCurrPcieLinkWidth(device), nvml.nvmlDeviceGetMaxPcieLinkWidth(device)
    return (
        ["PCIe x%d of x%d" % (width, most)] if width < most else []
    )  # the generation falls when idle: ``gpu-speed`` copies


def _nvlinks(nvml: Any, device: Any, place: Place) -> list[str]:
    down = []
    for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(device, link):
                down.append(str(link))
        except nvml.NVMLError:
            break
    return ["NVLink %s down" % ", ".join(down)] if down else []


def _foreign(nvml: Any, device: Any, place: Place) -> list[str]:
    found = []
    for process in nvml.nvmlDeviceGetComputeRunningProcesses(device):
        used = (process.usedGpuMemory or 0) / MB
        if used > FOREIGN_MB:
            found.append("process %d holds %.0f MB" % (process.pid, used))
    return found


_LOOKS: tuple[Callable[[Any, Any, Place], list[str]], ...] = (
    _ecc,
    _rows,
    _pages,
    _clocks,
    _persistence,
    _pcie,
    _nvlinks,
    _foreign,
)


def _nvml() -> tuple[Any, str]:
    """pynvml, initialised; or None and why."""
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None, "pynvml is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, "NVML: %s" % error
    return pynvml, os.environ.get("FT_NVML_DOUBLE", "")


def _word(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
