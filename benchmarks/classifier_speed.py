"""How fast the classifier reads, and how much memory it needs: for ``benchmarks.classifier``.

*speed*: one core, against ``grep -F -f`` with the literals of the same signatures on the same log in the same run.
*memory*: the most that a process of its own needs for a log that is generated while it is read.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    from re import _parser as regex_parser
else:
    import sre_parse as regex_parser

from airflow_ft.core.classify import classify
from airflow_ft.core.rules import RuleSet
from airflow_ft.diagnosis.answers import as_answer
from airflow_ft.diagnosis.inputs import facts_of_text, read_inputs


def literals(rules: RuleSet) -> list[str]:
    """Return literals of which one stands in every line that a signature could match, for ``grep -F``."""
    found: set[str] = set()
    for signature in rules.signatures:
        if signature.pattern:
            plain = re.sub(r"\(\?-?[ims]+\)|(?<=\(\?)-?[ims]+(?=:)", "", signature.pattern)
            found |= _cover(list(regex_parser.parse(plain)))
    return sorted(found)


def _cover(items: list[Any]) -> set[str]:
    """Return the cover of a sequence whose shortest literal is the longest: one of it stands in every match."""
    covers, run = [], ""
    for operation, value in [*items, (None, None)]:
        name = str(operation)
        if name == "LITERAL":
            run += chr(value)
            continue
        if run:
            covers.append({run})
            run = ""
        if name == "SUBPATTERN":
            covers.append(_cover(list(value[-1])))
        elif name == "BRANCH":
            branches = [_cover(list(branch)) for branch in value[1]]
            covers.append(set().union(*branches) if all(branches) else set())
        elif name in ("MAX_REPEAT", "MIN_REPEAT") and value[0] > 0:
            covers.append(_cover(list(value[2])))
    return max((cover for cover in covers if cover), key=lambda cover: min(map(len, cover)), default=set())


def log_blocks(megabytes: float, corpus: list[dict[str, Any]]) -> Iterator[bytes]:
    """Give a log like a real one: steps of eight ranks, NCCL's notes, warnings, a rare handled error, then an end."""
    lines = []
    for step in range(4_000):
        rank, clock = step % 8, f"10:{step // 60 % 60:02d}:{step % 60:02d},{step % 1000:03d}"
        lines.append(
            f"[rank{rank}]:2026-03-01 {clock} - root - INFO - step: {step:6d}  loss: {8 - step / 1000:7.4f}"
            f"  memory: 61.2GiB(77.1%)  tps: {5000 + step % 700}  mfu: 41.{step % 100:02d}%"
        )
        if step % 10 == 0:
            there = (rank + 1) % 8
            lines.append(
                f"node{rank}:4021{rank}:41{step % 900:03d} [{rank}] NCCL INFO Channel {step % 24:02d}/0 : "
                f"{rank}[{rank}] -> {there}[{there}] via P2P/CUMEM/read"
            )
        if step % 40 == 0:
            lines.append(
                "/opt/venv/lib/python3.11/site-packages/torch/utils/checkpoint.py:61: UserWarning: None of the inputs "
                "have requires_grad=True. Gradients will be None"
            )
        if step % 400 == 0:
            lines.append("DEBUG fsspec: retrying GET https://store/data/shard-0001 after a short wait, attempt 2 of 5")
    block = ("\n".join(lines) + "\n").encode()
    end = next(case["text"] for case in corpus if case["class"] == "OOM_GPU").encode()
    yield from (block for _ in range(max(1, int(megabytes * 1e6 / len(block)))))
    yield end


def speed(corpus: list[dict[str, Any]], rules: RuleSet, megabytes: float) -> dict[str, Any]:
    """Return megabytes per second of the classifier and of grep, on the same log, each the best of three by turns."""
    with tempfile.TemporaryDirectory() as folder:
        log, words = Path(folder, "train.log"), Path(folder, "words")
        log.write_bytes(b"".join(log_blocks(megabytes, corpus)))
        words.write_text("\n".join(literals(rules)) + "\n")
        size = log.stat().st_size / 1e6
        ours, grep = [], []
        classify(facts_of_text("warm up", rules), rules)
        for _ in range(3):  # by turns; processor time, since the machine is shared
            begin = time.process_time()
            answer = as_answer(classify(read_inputs([str(log)], rules), rules))
            ours.append(time.process_time() - begin)
            begin = _children()
            counted = subprocess.run(
                ["grep", "-c", "-F", "-f", str(words), str(log)], env={"LC_ALL": "C"}, capture_output=True, check=False
            )
            grep.append(_children() - begin)
    return {
        "megabytes": size,
        "ours_mb_per_s": size / min(ours),
        "grep_mb_per_s": size / min(grep),
        "ratio": min(grep) / min(ours),
        "literals": len(literals(rules)),
        "grep_lines": int(counted.stdout or 0),
        "answer": answer["fault_class"],
    }


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def memory(megabytes: float, corpus: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the most memory that a process of its own needs to classify a log of this size, piped into it."""
    program = (
        "import re, pathlib\n"
        "from airflow_ft.core.classify import classify\n"
        "from airflow_ft.diagnosis.inputs import read_inputs\n"
        "from airflow_ft.diagnosis.signature_files import load_rules\n"
        "told = classify(read_inputs(['-'], load_rules()), load_rules())\n"
        # Its own high-water mark: what getrusage calls the maximum is taken over from the process that forked it.
        "kib = re.search('VmHWM:\\\\s+(\\\\d+)', pathlib.Path('/proc/self/status').read_text())[1]\n"
        "print(int(kib) / 1024, told.fault_class.value)\n"
    )
    written, begin = 0, _children()
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for block in log_blocks(megabytes, corpus):
            written += child.stdin.write(block)
        child.stdin.close()
        most, answer = child.stdout.read().decode().split()
    used = _children() - begin
    return {
        "gigabytes": written / 1e9,
        "max_rss_mib": float(most),
        "answer": answer,
        "mb_per_cpu_second": written / 1e6 / used,
    }
