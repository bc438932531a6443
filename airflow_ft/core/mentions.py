"""Whom a message speaks of when nobody signed it: ranks, hosts and peers in its own words. Feeds ``naming_suspects``.

A line without a prefix often names its subject itself: ``Unexpected result on rank 88``, ``did not receive grad for
rank 3``, ``Fault nodes are: [11]``, ``Lost executor 3 on 10.1.2.3``. The first that it names is its subject (a second
is who noticed, or whom it is compared with). That holds for causes only: a consequence names its victim.
"""

from __future__ import annotations

import re

_RANK = re.compile(
    r"(?i)(?<!local )(?<!local_)(?<!peer )\brank(?:[ _]?id)?s?(?: are| is)?[ =:#]{0,2}[\[('\"]{0,2}(?P<rank>\d{1,6})\b"
    r"|/task:(?P<task>\d{1,6})\b|\b(?:worker )?task (?P<number>\d{1,6})(?= (?:is|has|was|did|failed|died))"
    r"|(?-i:(?<![\w/.-])(?:VllmWorker|Worker))[-_](?P<worker>\d{1,4})\b"
    r"|dict_keys\(\[(?P<key>\d{1,6})|\bW\[(?P<server>\d{1,6})\] at"
    r"|\bnodes?(?: are| is)?:? ?[\['\"]{0,2}(?P<node>\d{1,5})(?:\b['\"]?\]| is (?:timed|lost|dead|abnormal))"
)
_NO_HOST = r"(?!(?i:rank|gpu|node|device|port|step|cuda|mlx)[\d_]*(?![\w.-]))"
_PLACE = re.compile(
    r"(?:\b(?:[Oo]n|at) (?:host |node )?|\b(?:[Hh]ost|[Nn]ode|[Mm]achine|[Ss]erver|[Ii]nstance)[ =:]{1,2}|tcp://"
    r"|\bConnection to |FailedNode=|node '|\bagent |remote=\[|slot\d+(?:_\d+)?@|(?:^|error: )(?=\S+: (?:pro|epi)log\b))"
    rf"(?P<host>{_NO_HOST}[A-Za-z][\w.-]*\d[\w.-]*|(?:\d{{1,3}}\.){{3}}\d{{1,3}})"
)


_OF_PROCESS = re.compile(r"_\d+_\d+$")  # torch elastic puts the pid and the local number behind the host


def rank_in(text: str) -> int | None:
    """Return the rank that a message is about."""
    found = _RANK.search(text[:1000])
    return int(next(filter(None, found.groups()))) if found else None


def place_in(text: str) -> str | None:
    """Return the host or the address that a message is about."""
    found = _PLACE.search(text[:1000])
    return _OF_PROCESS.sub("", found["host"].rstrip(".-")) if found else None
