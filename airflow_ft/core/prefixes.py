"""Whose line it is: what launchers, schedulers, collectors and libraries put before a line. Feeds ``findings``.

Prefixes are taken off one after the other, so that a signature sees the line as its program printed it:

- clocks (ISO, dmesg seconds, glog), ``kern  :warn  :``, syslog's host and program;
- any bracket at the head that names a rank (``(worker1, rank=1, ip=10.0.0.7)``, ``[1,mpirank:11,algo-2]<stderr>:``);
- ``[rank3]:`` of PyTorch, ``[default3]:`` of torchrun's tee, ``[1,23]<stderr>:`` of mpirun, ``[3]<stdout>:`` too;
- ``(RayTrainWorker pid=933, ip=10.0.0.11)`` of Ray;
- ``node48:34050:34121 [0]`` of NCCL: host, process, thread and GPU;
- ``[pod/worker-1/pytorch]`` of kubectl, ``worker-1 pytorch`` of stern;
- the level and the logger of an error, so that a logged traceback reads like one that was printed;
- the heads of programs' own loggers, and lines that are whole records (``log_heads``);
- labels that most lines of a log carry (``3: `` of ``srun --label``, ``[3]:``, ``worker-1: ``, ``job/pod-0 | ``). One
  line alone can't tell a label from a word with a colon: a log is asked first whether it is labelled.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from airflow_ft.core.log_heads import read_head, read_record
from airflow_ft.core.loglines import split_rank


class Who(NamedTuple):
    """Whose line it is. Any of it may be unknown; a local rank exists on every node."""

    node: str | None = None
    rank: int | None = None
    local_rank: int | None = None

    def is_same(self, other: Who) -> bool:
        """Whether both surely are one process."""
        if self.rank is not None and other.rank is not None:
            return self.rank == other.rank
        return self.node == other.node and self.local_rank is not None and self.local_rank == other.local_rank

    def may_be(self, other: Who) -> bool:
        """Whether nothing that is known of the two says that they are different processes."""
        return all(mine is None or theirs is None or mine == theirs for mine, theirs in zip(self, other, strict=True))

    @property
    def is_known(self) -> bool:
        """Whether a rank is named."""
        return self.rank is not None or self.local_rank is not None


SAMPLE = 400
_CLOCK_HEADS = "[0123456789"
_CLOCK = re.compile(
    r"(?:kern +:\w+ +: )?(?:"
    r"\[? ?\d{4}-\d\d-\d\d[T _-]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?"
    r"|\[ *(?:\d+\.\d+|\+[ \d.]+|\w{3} \w{3} +\d+ [\d:]+ \d{4}|\w{3} ?\d+ [\d:]+)\]"
    r"|\[ *\d+\.\d+s\b[^\]]*\]|\d{6}Z|\d+,\d+,\d+,-;)(?: UTC\b)?[ \t]*"
)
_SYSLOG = re.compile(
    r"(?:\w{3} +\d+ \d\d:\d\d:\d\d |(?<=\d )|(?<=Z )|^)(?P<node>[a-zA-Z][\w.-]*\d[\w.-]*) "
    r"(?:kernel|kubelet|slurmd|slurmstepd|containerd|systemd|dockerd|nvidia-\w+)(?:\[\d+\])?: +"
)
_SYSLOG_CLOCK = re.compile(r"\w{3} +\d+ \d\d:\d\d:\d\d (?P<node>[\w.-]+) [\w./-]+(?:\[\d+\])?: +")
_CTIME = re.compile(r"\w{3} \w{3} +\d+ \d\d:\d\d:\d\d \d{4}(?=[\[ ])")
_MPI = re.compile(r"\[(?:\d+,)?(?P<rank>\d+)\]<std(?:err|out)>: ?")
_RANKED = re.compile(
    r"[\[(](?:[\w.:=, -]{0,60}[^a-z_])?(?:mpi|global_?|world_?)?rank[=: ]{1,2}(?P<rank>\d{1,6})\b"
    r"(?:[\w.:=, -]{0,60}?\bip=(?P<node>[\w.]+))?[\w.:=, -]{0,60}[\])](?:<std(?:err|out)>)?:? ?"
)
_RAY = re.compile(
    r"\((?:(?!\d)[\w.:<>]+(?: rank=(?P<rank>\d+))?,? ?(?:pid=\d+)?(?:, ip=(?P<node>[\w.]+))?)\)"
    r"(?: \[repeated [^\]]*\])? "
)
_NCCL = re.compile(r"(?P<node>[A-Za-z][\w.-]*):(?:\d+|X+):?(?:\d+|X+)? \[(?P<gpu>\d+)\] ")
_NCCL_BARE = re.compile(r"\[(?P<gpu>\d+)\] (?=[\w/.]+:\d+ NCCL|NCCL)")
_TASK = re.compile(r"\[\d{1,5}\] (?=\[)|[a-z]\.[\w-]+/(?P<task>\d+) |[A-Za-z][\w-]*\.\d+ -- ")
_IN_TEXT = re.compile(r"^(?:[\w.]+: )?[Rr]ank (\d+)[:,] ")
_BRACKET_NODE = re.compile(r"\[(?!(?:rank|default|step|epoch)\d)(?P<node>[a-z][\w.-]*\d)\] (?=\S)")
_KUBECTL = re.compile(r"\[pod/(?P<node>[\w.-]+)/[\w.-]+\] ")
_STERN = re.compile(r"(?P<node>[a-z][a-z0-9-]*-[a-z0-9-]*\d[a-z0-9-]*) (?P<container>[a-z][a-z0-9-]*) (?:\S+Z )?")
_LEVEL = re.compile(  # a warning keeps its word
    r"(?:\| ?)?(?:[\w.]+ - |- )?\[?(?:ERROR|CRITICAL|FATAL)\]? *(?:\| [^|]{1,80}? - |- |: ?|(?:[A-Za-z_][\w.]*: )?)"
    r"(?=\[[Rr]ank ?\d|Traceback|[\w.]*[A-Z]\w*(?:Error|Exception)\b|  File \")"
)
_LABEL = re.compile(
    r" *(?:(?P<rank>\d{1,5})|\[(?P<bracketed>\d{1,5})\]"
    r"|\[?(?P<name>(?:pod/)?(?!(?i:rank|default)\d)[A-Za-z][\w./-]*\d[\w./-]*)\]?)(?: *\| |: |(?<=\d\]): ?)"
    r"|(?P<service>(?!(?i:info|debug|warn|error|crit|fatal|trace|success))[A-Za-z][\w.-]*) *\| "
)


_MAY_HAVE_HEAD = re.compile(r"[Rr]ank|@|[TD]P\d|[\[(<][RrW]\d|[Ww]orker|[Pp]roc|\|DP=|NeMo|^<|\d:\d+[\s:\]]|RankID")
_LAUNCHERS = re.compile(r"(?:srun|slurmstepd|salloc|sbatch|mpirun|pyxis)(?:-[\w-]+)?: ")
_HOST_LABEL = re.compile(r"[\[ ]*[A-Za-z][\w.]*-[\w.-]*\d[\w.-]*\]?(?: *\| |: )")
_MEMBER = re.compile(
    r"\[?(?P<name>(?!(?i:step|epoch|iter|batch|fold|layer|stage|rank|gpu))(?:"
    r"(?P<stem>[A-Za-z][\w.]*-(?:[\w.-]*-)?[A-Za-z]*)(?P<number>\d+)(?=\]?(?::| \||) )"
    r"|(?P<short>[A-Za-z]+)(?P<of>\d+)(?=\]? \| )))\]?(?::| \||) "
)
_NUMBERED, _PIPED = re.compile(r" *\d{1,5}: "), re.compile(r" *\d{1,5} ?\| ")


class PrefixReader:
    """Take the prefixes off the lines of one log.

    :param sample: some of its lines, to see whether they are labelled.
    :param node: the node that the log was written on.
    :param local_rank: whose log it is.
    """

    def __init__(self, sample: Iterable[str], node: str | None = None, local_rank: int | None = None) -> None:
        self.node, self.local_rank = node, local_rank
        lines = list(sample)[:SAMPLE]
        self.labelled = _is_labelled(lines)
        self._stern = not self.labelled and _is_stern(lines)
        self._members = not self.labelled and not self._stern and _are_members(lines)

    def read(self, line: str) -> tuple[Who, str]:
        """Return the writer of a line, and the line as it was printed."""
        node, rank, local = self.node, None, None
        text = line
        if self.labelled and (label := _LABEL.match(text)) is not None:
            told = label["rank"] or label["bracketed"]
            rank = int(told) if told else None
            node = node or label["name"] or label["service"]
            text = text[label.end() :]
        elif self._stern and (label := _STERN.match(text)) is not None:
            node, text = node or label["node"], text[label.end() :]
        elif self._members and (label := _MEMBER.match(text)) is not None:
            node, text = node or label["name"], text[label.end() :]
        record = read_record(text) if text[-1:] in ("}", '"') or text[:1] == "{" else None
        if record is not None:
            node, rank, local, text = node or record.node, record.rank, record.local_rank, record.text
        text, node, rank, local = _rounds(text, node, rank, local)
        if rank is None and _MAY_HAVE_HEAD.search(text[:120]) and (head := read_head(text)) is not None:
            local = head.local_rank if local is None else local
            text, node, rank, local = _rounds(head.text, node or head.node, head.rank, local)
        if rank is None and (said := _IN_TEXT.match(text[:160])) is not None:
            rank, text = int(said[1]), text[said.end() :] if said[0][0] in "rR" and said[0][-2] == ":" else text
        if local is None and rank is None:
            local = self.local_rank
        return Who(node, rank, local), text


def _rounds(
    text: str, node: str | None, rank: int | None, local: int | None
) -> tuple[str, str | None, int | None, int | None]:
    for _ in range(4):
        before = text
        text, node, rank, local = _one_round(text, node, rank, local)
        if text == before:
            break
    return text, node, rank, local


def _one_round(
    text: str, node: str | None, rank: int | None, local: int | None
) -> tuple[str, str | None, int | None, int | None]:
    head = text[:1]
    if head == "[" and (pod := _KUBECTL.match(text)) is not None:
        text, node, head = text[pod.end() :], node or pod["node"], text[pod.end() : pod.end() + 1]
    if (head in _CLOCK_HEADS or text.startswith("kern")) and head and (clock := _CLOCK.match(text)) is not None:
        text = text[clock.end() :]
    elif (syslog := _SYSLOG_CLOCK.match(text)) is not None:
        text, node = text[syslog.end() :], node or syslog["node"]
    elif (ctime := _CTIME.match(text)) is not None:
        text = text[ctime.end() :]
    if (syslog := _SYSLOG.match(text)) is not None:
        text, node = text[syslog.end() :], node or syslog["node"]
    if head in "[(" and (ranked_head := _RANKED.match(text)) is not None:
        text, node = text[ranked_head.end() :], node or ranked_head["node"]
        rank = int(ranked_head["rank"]) if rank is None else rank
    if (mpi := _MPI.match(text)) is not None:
        text, rank = text[mpi.end() :], int(mpi["rank"]) if rank is None else rank
    if head == "(" and (ray := _RAY.match(text)) is not None:
        text, node = text[ray.end() :], node or ray["node"]
        rank = int(ray["rank"]) if ray["rank"] and rank is None else rank
    if (task := _TASK.match(text)) is not None:
        text = text[task.end() :]
    if (place := _BRACKET_NODE.match(text)) is not None and (node is None or place["node"] == node):
        text, node = text[place.end() :], place["node"]
    if (level := _LEVEL.match(text)) is not None:
        text = text[level.end() :]
    ranked = split_rank(text)
    text = ranked.text
    rank = ranked.rank if rank is None else rank
    local = ranked.local_rank if local is None else local
    if " [" in text[:80] and (nccl := _NCCL.match(text)) is not None:
        text = text[nccl.end() :]
        node = node or nccl["node"]
        local = int(nccl["gpu"]) if local is None and rank is None else local
    elif (bare := _NCCL_BARE.match(text)) is not None:
        local = int(bare["gpu"]) if local is None and rank is None else local
        text = text[bare.end() :]
    return text, node, rank, local


def _is_labelled(sample: list[str]) -> bool:
    """Whether most lines of a log carry a label, and the labels are few. srun's own lines never carry its labels."""
    written = [line for line in sample if line.strip()]
    lines = [line for line in written if not _LAUNCHERS.match(line)]
    labels = Counter(found[0] for line in lines if (found := _LABEL.match(line)) is not None)
    if lines and all(_NUMBERED.match(line) for line in lines):
        # A number at each line is srun's label where srun speaks, where one comes again or a smaller one follows: a
        # file's numbered lines do neither.
        numbers = [int(line.split(":")[0]) for line in lines]
        in_order = all(after > before for before, after in itertools.pairwise(numbers))
        return len(lines) < len(written) or len(labels) < len(lines) or not in_order
    if len(lines) > 1 and all(_PIPED.match(line) for line in lines):
        return True
    if len(lines) >= 2 and labels.total() == len(lines) > len(labels) and all(_HOST_LABEL.match(one) for one in labels):
        return True  # few lines, each with a host's name
    return sum(labels.values()) * 10 >= 7 * len(lines) > 0 and len(lines) >= 3 and len(labels) * 2 <= len(lines)


def _are_members(lines: list[str]) -> bool:
    """Whether each line begins with a name, and the names differ in their last number only: the members of one job."""
    names = [found for line in lines if (found := _MEMBER.match(line)) is not None]
    different = {found["number"] or found["of"] for found in names}
    stems = {found["stem"] or found["short"] for found in names}
    return len(names) == len(lines) > 1 and len(different) > 1 and len(stems) == 1


def _is_stern(sample: list[str]) -> bool:
    """Whether nearly all lines begin with a pod and the same container or two."""
    lines = [line for line in sample if line.strip()]
    found = [match for line in lines if (match := _STERN.match(line)) is not None]
    return len(lines) >= 3 and len(found) * 10 >= 9 * len(lines) and len({match["container"] for match in found}) <= 2
