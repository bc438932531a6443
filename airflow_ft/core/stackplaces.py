"""Places in stacks: where the main thread of a process is, in the words of py-spy or of faulthandler.

Feeds ``naming_suspects`` (a suspect is named with its innermost frame of the user's own code) and ``spinning``. Pure.

A *spinning* rank burns a core and never comes back: a loop that waits for what will not happen, a lock that is polled.
Its CPU time looks like work, so a silence with a busy rank is given time, unless all of this holds in every one of
several looks: the busy rank is in the very same place, which is the user's own code and none that is known to take
long (compiling, saving, loading, evaluating); the others wait, or stand together at another place, as in a collective;
and they are the majority. Who works calls something; who spins doesn't. Rejected: CPU time alone (a compilation on one
rank looks the same for minutes) and one look (everybody is somewhere).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

LOOKS = 4  # so many looks have to agree


class Frame(NamedTuple):
    """One frame of a Python stack."""

    function: str
    file: str
    line: int


_THREAD = re.compile(r"^(?:Current thread|Thread)\b")
_FAULTHANDLER = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.+)$')
_PY_SPY = re.compile(r"^\s+(?P<function>\S.*?) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)$")
_LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib/python\d|/lib64/python\d|^<(?!stdin|string)|^[\w./-]+\.(?:so|pyx)")
_LONG_WORK = re.compile(
    r"(?i)compil|dynamo|inductor|triton|autotune|trac(?:e|ing)|export|checkpoint|ckpt|\bsav(?:e|ing)|_save|save_"
    r"|\bload|_load|load_|eval|valid|\btest|predict|generat|infer|sampl|serializ|pickle|download|upload|tokeniz|preproc"
    r"|prepar|warm|metric|export|merge|shuffle|index"
)


def frames(stack: str) -> tuple[Frame, ...]:
    """Return the frames of the main thread, the innermost first; of all threads if none is marked as the main one."""
    sections: list[tuple[str, list[Frame]]] = [("", [])]
    for line in stack.splitlines():
        if _THREAD.match(line):
            sections.append((line, []))
        elif (found := _FAULTHANDLER.match(line) or _PY_SPY.match(line)) is not None:
            frame = Frame(found["function"].strip(), found["file"], int(found["line"] or 0))
            sections[-1][1].append(frame)
    marked = [found for head, found in sections if "MainThread" in head or head.startswith("Current thread")]
    if marked:
        return tuple(marked[0])
    threads = [found for head, found in sections if head and found]
    # faulthandler writes the threads from the newest to the oldest: the main thread is the last one.
    return tuple(threads[-1]) if threads else tuple(sections[0][1])


def user_place(stack: str) -> str:
    """Return the innermost frame of the user's own code as "function (file:line)"; "" if there is none."""
    own = next((frame for frame in frames(stack) if not _LIBRARY.search(frame.file)), None)
    return f"{own.function} ({own.file.rsplit('/', 1)[-1]}:{own.line})" if own is not None else ""


# Where ranks wait for each other; PyTorch's, and the names that others gave the same things.
_COLLECTIVE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|broadcast|\bbarrier\b|all_?to_?all|run_backward|\bbackward\b|wait_tensor"
    r"|\b(?:gather|scatter|send|recv|isend|irecv|psum|synchronize)\b"
)


def in_collective(frames_text: str) -> bool:
    """Whether the frames of a main thread show that it waits for other ranks."""
    return _COLLECTIVE.search(frames_text) is not None


Look = Mapping[int, tuple[Frame, ...]]  # a rank's frames, of the ranks that were on a CPU


def spinning(looks: Sequence[Look], busy: Collection[int], world: int) -> tuple[int, ...]:
    """Return the ranks that spin; none if that isn't sure.

    :param looks: several looks at the busy ranks, at least ``LOOKS``.
    :param busy: the ranks that use a CPU.
    :param world: how many ranks there are.
    """
    if len(looks) < LOOKS or not busy:
        return ()
    places: dict[tuple[Frame, ...], list[int]] = {}
    for rank in busy:
        place = _same_place([look.get(rank, ()) for look in looks])
        if not place:
            return ()  # somebody is busy with something: it may be what all wait for
        places.setdefault(place, []).append(rank)
    waiting = world - len(busy)
    most = max(places, key=lambda place: len(places[place]))
    odd = [place for place in places if waiting >= len(places[place]) or place != most]
    found = sorted(rank for place in odd for rank in places[place])
    if not found or 2 * len(found) > world or not all(_may_spin(place) for place in odd):
        return ()
    return tuple(found)


def all_stand(looks: Sequence[Look], ranks: Collection[int]) -> bool:
    """Whether each of these ranks was at one place in all looks, whatever place that is."""
    return len(looks) >= LOOKS and all(_same_place([look.get(rank, ()) for look in looks]) for rank in ranks)


def _same_place(seen: Sequence[tuple[Frame, ...]]) -> tuple[Frame, ...]:
    """Return the stack that is in all looks, whatever the line of its innermost function; nothing if it moves."""
    first = seen[0]
    if not first:
        return ()
    for stack in seen[1:]:
        if not stack or stack[1:] != first[1:] or stack[0][:2] != first[0][:2]:
            return ()
    return (first[0]._replace(line=0), *first[1:])


def _may_spin(place: Sequence[Frame]) -> bool:
    own = not _LIBRARY.search(place[0].file)
    return own and not any(_LONG_WORK.search(frame.function) or _in_long_work(frame.file) for frame in place)


def _in_long_work(file: str) -> bool:
    return _LIBRARY.search(file) is not None and _LONG_WORK.search(file.rsplit("-packages/", 1)[-1]) is not None
