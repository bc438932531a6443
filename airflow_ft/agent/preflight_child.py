"""Starts the process in which torch looks (``preflight_torch``), and collects what it says, also if it crashes.

Whether it is started at all:

====================  ==============================================================================================
nodes with GPUs       in ``standard`` and ``deep``: GPUs are measured, and nodes talk over NCCL
nodes without         in ``deep``: nodes talk over gloo. In ``standard`` importing torch would take longer than all
                      the rest, and plain sockets have looked at the same network (``preflight_comm``)
nodes of one machine  its GPUs belong to all of them: no node's speed, and NCCL takes a GPU only once; gloo
====================  ==============================================================================================
"""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

GPU_FILES = ("/dev/nvidia[0-9]*", "/dev/kfd")  # NVIDIA's, AMD's


def torch_device(deep: bool, shared: bool) -> tuple[str, str]:
    """Return where torch is to look, ``cuda`` or ``cpu``; or an empty word, and why not."""
    if importlib.util.find_spec("torch") is None:
        return "", "torch can't be imported here"
    if not shared and any(glob.glob(files) for files in GPU_FILES):
        return "cuda", ""
    return ("cpu", "") if deep else ("", "without GPUs it is looked at in the set deep only")


class Child:
    """The process. ``told`` is what it has said: the pairs as a list, everything else by its name."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.told: dict[str, Any] = {"pairs": []}
        self._at = ""
        self._heard = threading.Condition()
        program = os.path.abspath(sys.argv[0])
        start = [program] if program.endswith(".pyz") else ["-m", str(__package__)]
        self._process = subprocess.Popen(
            [sys.executable, *start, "torch", "--config", json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # torch's own traces; what matters comes as an error's text
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def store_port(self, deadline: float) -> int:
        """Return the port of node 0's store; 0 if there is none in time."""
        with self._heard:
            while "store" not in self.told and self._process.poll() is None and time.monotonic() < deadline:
                self._heard.wait(0.2)
        return int(self.told.get("store", 0))

    def meet(self, host: str, port: int) -> None:
        """Tell it where the store is."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(b"%s %d\n" % (host.encode(), port))
            self._process.stdin.flush()
        except OSError:
            return  # it is gone: seen at its end

    def ended(self, deadline: float, me: str) -> dict[str, Any]:
        """Wait for its end; what it was at when it crashed, or had no time for, is an error of that."""
        try:
            code: int | None = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            code = None
        self._reader.join(2.0)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        if code == 0:
            return self.told
        why = "no answer in time" if code is None else "torch's process ended with code %d" % code
        if self._at and self._at != "all nodes":
            self.told["pairs"].append([me, self._at, 0.0, 0.0, why, 0.0])
        elif self._at:
            self.told.setdefault("together", why)
        else:
            self.told.setdefault("skipped", why)
        return self.told

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue  # a library's own words
            if not isinstance(said, dict):
                continue
            with self._heard:
                self._at = str(said.pop("at", "" if {"pair", "together"} & set(said) else self._at))
                if "pair" in said:
                    self.told["pairs"].append(said.pop("pair"))
                self.told.update(said)
                self._heard.notify_all()
