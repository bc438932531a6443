"""Is the checkpoint folder the same one on all nodes? Each leaves a file there, and looks for those of the others.

A folder that looks right on every node and is another one on each costs the whole training: it is found out when the
first checkpoint is loaded. Files are opened by name, never listed: an NFS client may show an old list for a minute.
"""

from __future__ import annotations

import os
from typing import Any

from .preflight_result import Result, failed, ok, skipped

ITEM = "checkpoint shared"


class Mark:
    """This node's file. Its name is empty if there is none: no folder, one of its own, or it can't be written."""

    def __init__(self, folder: str, node: str) -> None:
        self._folder, self.name = folder, ""
        if not folder or "{node}" in folder:
            return
        name = ".ft-preflight-here-%s-%d" % (node, os.getpid())
        try:
            with open(os.path.join(folder, name), "w") as file:
                file.write(name)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            return  # the item ``checkpoint`` says so
        self.name = name

    def sees(self, names: dict[str, str]) -> list[str]:
        """Return the nodes whose file is here."""
        return [node for node, name in names.items() if name and self._holds(name)]

    def _holds(self, name: str) -> bool:
        try:
            with open(os.path.join(self._folder, os.path.basename(name))) as file:
                return file.read() == name
        except OSError:
            return False

    def remove(self) -> None:
        """Remove this node's file."""
        if self.name:
            try:
                os.unlink(os.path.join(self._folder, self.name))
            except OSError:
                pass


def judge(marks: dict[str, str], seen: dict[str, Any], me: str) -> Result:
    """What the nodes see of each other: who sees less than half of the others, or is seen by less, is apart."""
    with_mark = sorted(node for node, mark in marks.items() if mark)
    others = [node for node in with_mark if node != me]
    if me not in with_mark or not others:
        return skipped("no folder that several nodes could write")._replace(item=ITEM)
    mine = [node for node in others if node in seen.get(me, ())]
    theirs = [node for node in others if me in seen.get(node, ())]
    need = "the same folder on all nodes"
    if 2 * len(mine) < len(others) or 2 * len(theirs) < len(others):
        missing = [node for node in others if node not in mine] or [node for node in others if node not in theirs]
        text = "files of %s are not here" % ", ".join(missing[:8])
        advice = "Mount the same volume on all nodes: a checkpoint that one of them writes has to be there for all."
        return failed(text, need, advice)._replace(item=ITEM)
    return ok("shared with %d nodes" % len(mine), need)._replace(item=ITEM)
