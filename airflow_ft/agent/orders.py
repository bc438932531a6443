"""Numbered orders: how somebody outside tells a running agent what to do, exactly once.

An order is a file `orders/N`, where N is the generation that it leads to. It is created with link(2) from a temporary
file: of any number of senders exactly one creates it, the others learn what is there. So an order can be sent again, to
every node, by a sender that doesn't know how far its predecessor came:

========================================================  ========
N is below the agent's generation, or a higher N exists    refused
`orders/N` exists: same action and same digest             already
`orders/N` exists: anything else                           refused
no live agent, another attempt or incarnation, after TERM  refused
otherwise                                                  accepted
========================================================  ========

Requests for stack dumps have a numbering of their own (`orders/stacks-N`): they lead to no generation. Fed by `cli`
and, in process, by the local backend (`give`); read by the supervisor (`highest`, `pending`).

An accepted order is obeyed. The agent writes "stopping" *before* its last look at the orders, and `give` reads the
state *after* the link: whichever comes second sees the other.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from typing import Any, NamedTuple

from . import state

ACTIONS = ("restart", "release", "stacks")
MAX_NOTE_BYTES = 4096
# An agent that is stopping says within this time whether it took the order: 10 s of killing, and some for the rest.
CONFIRM_SECONDS = 15.0
_NUMBER = re.compile(r"^(stacks-)?([0-9]{1,9})$", re.ASCII)
_NO_LINK = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)


class OrderResult(NamedTuple):
    """What became of an order: accepted | already | refused, and the note of the order that stands under its number."""

    result: str
    why: str
    generation: int
    note: Any = None


def give(
    directory: str,
    action: str,
    generation: int,
    *,
    attempt: str | None = None,
    incarnation: str | None = None,
    digest: str | None = None,
    by: str = "",
    note: Any = None,
) -> OrderResult:
    """Give one order to the agent of a folder. Whom it isn't given (None) isn't checked: attempt, incarnation.

    May raise OSError if the order can't be written; then it was not given.
    """
    wanted = {"action": action, "generation": generation, "attempt": attempt, "incarnation": incarnation}
    wanted.update(digest=digest, by=by, note=note, version=state.VERSION, at=time.time())
    path = os.path.join(directory, "orders", _name(action, generation))
    why = _malformed(wanted) or _unfit(state.read_state(directory), wanted)
    if why:
        return OrderResult("refused", why, generation, (read(path) or {}).get("note"))
    if not os.path.lexists(path):
        why = _stale(directory, wanted)
        if why is None and _create(path, wanted):
            return _confirm(directory, wanted)
        if why and not os.path.lexists(path):  # else a twin was quicker, and the agent quicker still
            return OrderResult("refused", why, generation)
    return _compare(read(path), wanted)  # it exists, whole: read it only now


def read(path: str) -> dict[str, Any] | None:
    """One order; None if there is none that can be understood."""
    try:
        with open(path) as file:
            value = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.get("action") in ACTIONS else None


def highest(directory: str, stacks: bool = False) -> int:
    """The highest number among the orders of a folder, -1 if there is none. Unreadable orders count too."""
    try:
        names = os.listdir(os.path.join(directory, "orders"))
    except OSError:
        return -1
    found = [_NUMBER.match(name) for name in names]
    return max([int(match.group(2)) for match in found if match and bool(match.group(1)) == stacks] or [-1])


def notes(directory: str) -> list[dict[str, Any]]:
    """The notes of all orders, the oldest first: an agent that was stopped right after one never came to echo it."""
    numbers = range(1, highest(directory) + 1)
    found = [read(os.path.join(directory, "orders", str(number))) for number in numbers]
    given = [order.get("note") for order in found if order]
    return [note for note in given if isinstance(note, dict)]


def pending(directory: str, above: int, stacks: bool = False) -> dict[str, Any] | None:
    """The order that the agent should obey now: the highest beyond `above`. Lower ones are overtaken.

    The next number is opened by name as well: the listing of a network folder may be a minute old.
    """
    folder = os.path.join(directory, "orders")
    for number in sorted({highest(directory, stacks), above + 1}, reverse=True):
        if number > above:
            order = read(os.path.join(folder, ("stacks-%d" if stacks else "%d") % number))
            if order:
                return dict(order, generation=number)
    return None


def fits(order: dict[str, Any], found: dict[str, Any]) -> bool:
    """Whether an order is for this attempt and incarnation: a file may also have been laid there without `give`."""
    return all(order.get(key) in (None, found.get(key)) for key in ("attempt", "incarnation"))


def _name(action: str, number: int) -> str:
    return ("stacks-%d" if action == "stacks" else "%d") % number


def _malformed(wanted: dict[str, Any]) -> str | None:
    if wanted["action"] not in ACTIONS:
        return "action: %r is not known. Give one of %s" % (wanted["action"], ", ".join(ACTIONS))
    if not 0 <= wanted["generation"] <= 999999999:
        return "generation: %d is not allowed. Give a number from 0 to 999999999" % wanted["generation"]
    try:
        size = len(json.dumps(wanted["note"], allow_nan=False))
    except ValueError:
        return "note: has a number that is not finite. Give JSON numbers"
    if size > MAX_NOTE_BYTES:
        return "note: longer than %d bytes as JSON. Give a shorter one" % MAX_NOTE_BYTES
    return None


def _unfit(found: dict[str, Any] | None, wanted: dict[str, Any]) -> str | None:
    """Why the agent of this state can't take any such order; None if it can."""
    if found is None or found.get("phase") == "ended" or not state.agent_lives(found):
        return "no live agent"
    for key in ("attempt", "incarnation"):
        if wanted[key] is not None and wanted[key] != found.get(key):
            return "%s: the agent's is %s, the order is for %s" % (key, found.get(key), wanted[key])
    if wanted["action"] == "stacks":
        return None
    if found.get("term"):
        return "the agent was told to stop (TERM)"
    if wanted["generation"] < found["generation"]:
        return "stale: the agent is at generation %d" % found["generation"]
    return None


def _stale(directory: str, wanted: dict[str, Any]) -> str | None:
    """Why a number that nobody used yet can't be used any more."""
    last = highest(directory, stacks=wanted["action"] == "stacks")
    if last > wanted["generation"]:
        return "stale: there is an order %d" % last
    found = state.read_state(directory) or {}
    if wanted["action"] != "stacks" and wanted["generation"] <= found.get("generation", -1):
        return "stale: the agent is at generation %d already, by no order" % found["generation"]
    return None


def _create(path: str, wanted: dict[str, Any]) -> bool:
    """Create the order if nobody did; False if somebody did."""
    temporary = os.path.join(os.path.dirname(path), ".%d-%d" % (os.getpid(), time.time_ns()))
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    state.write_atomic(temporary, wanted)
    try:
        os.link(temporary, path)
        return True
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        return _create_exclusively(path, wanted)
    finally:
        os.unlink(temporary)


def _create_exclusively(path: str, wanted: dict[str, Any]) -> bool:
    """For filesystems without hard links. A reader may see half of it, and takes that for no order yet."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    try:
        os.write(fd, json.dumps(wanted).encode())
    finally:
        os.close(fd)
    return True


def _compare(existing: dict[str, Any] | None, wanted: dict[str, Any]) -> OrderResult:
    number = wanted["generation"]
    if existing is None:
        return OrderResult("refused", "order %d exists and can't be read" % number, number)
    for key in ("action", "digest", "attempt", "incarnation"):
        mine, theirs = wanted[key], existing.get(key)
        if mine != theirs and (key in ("action", "digest") or None not in (mine, theirs)):
            why = "order %d exists with %s %s, not %s" % (number, key, theirs, mine)
            return OrderResult("refused", why, number, existing.get("note"))
    return OrderResult("already", "given before, by %s" % (existing.get("by") or "?"), number, existing.get("note"))


def _confirm(directory: str, wanted: dict[str, Any]) -> OrderResult:
    """We created the order; make sure that the agent didn't end, or jump beyond it, in the same instant."""
    number, note = wanted["generation"], wanted["note"]
    if wanted["action"] == "stacks":
        return OrderResult("accepted", "", number, note)
    overtaken = highest(directory)
    if overtaken > number:
        return OrderResult("refused", "overtaken by order %d" % overtaken, number, note)
    end = time.monotonic() + CONFIRM_SECONDS
    while True:
        found = state.read_state(directory) or {}
        if found.get("order", -1) >= number:
            return OrderResult("accepted", "", number, note)
        if found.get("phase") == "ended" or not state.agent_lives(found):
            return OrderResult("refused", "the agent ended before it saw the order", number, note)
        if found.get("phase") != "stopping":
            return OrderResult("accepted", "", number, note)
        if time.monotonic() > end:
            return OrderResult("refused", "the agent is stopping and didn't take the order", number, note)
        time.sleep(0.05)
