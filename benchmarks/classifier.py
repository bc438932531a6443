"""How often the classifier is right, how honest its confidence is, and how fast it reads.

    python -m benchmarks.classifier [--shared FOLDER] [--json FILE] [--misses] [--speed MEGABYTES] [--memory GIGABYTES]

Scored on the labelled corpus and the real torchrun logs that lie beside the checkout, through the same two functions as
``airflow-ft classify``: each case's text with its kind and its exit code, nothing else.

- *strict*: the class is the label's. *lenient*: it is the label's or its second best.
- *false stop*: said that a retry is useless where the label's class is cured by one (broken node, fabric, hang, main
  memory, unknown). *false exclude*: a node may be excluded although the label is no hardware or fabric fault.
- *culprit*: of the labels that name a rank, a node, a GPU or an address as the culprit, how often a suspect is one.
- *by source*: signatures know nothing of a case's source, so there is nothing to train and nothing to leave out; what
  can be asked is how much is lost when all signatures of one file are missing (leave one *signature* source out).
- *speed*: one core, against ``grep -F -f`` with the literals of the same signatures on the same log in the same run.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    from re import _parser as regex_parser
else:
    import sre_parse as regex_parser

from airflow_ft.core.classify import classify
from airflow_ft.core.rules import RuleSet, compile_signatures
from airflow_ft.diagnosis.answers import as_answer
from airflow_ft.diagnosis.inputs import facts_of_text, read_inputs
from airflow_ft.diagnosis.signature_files import load_rules

SHARED = Path(__file__).resolve().parents[2] / "shared"
CURED = {"HW_NODE", "NET_FABRIC", "COMM_HANG", "OOM_HOST", "UNKNOWN"}  # the default ladder runs these again
CLASSES = ("HW_NODE", "NET_FABRIC", "OOM_HOST", "OOM_GPU", "COMM_HANG", "APP_ERROR", "ENV_ERROR", "UNKNOWN")
# What the real torchrun logs are (their folders' names say what was done): class, then the culprit's rank or node.
TORCH_LOGS = {
    "a_exception": (("APP_ERROR",), "2"),
    "b_sigkill": (("UNKNOWN",), "2"),
    "c_sigsegv": (("HW_NODE",), "2"),
    "c2_abort": (("UNKNOWN",), "2"),
    "c3_exit17": (("UNKNOWN", "APP_ERROR"), "2"),
    "d_hang_timeout": (("COMM_HANG",), "2"),
    "e2_sigstop_timeout": (("COMM_HANG",), "2"),
    "e_hang_forever": (("UNKNOWN", "COMM_HANG"), None),
    "f_import_error": (("ENV_ERROR",), None),
    "f2_no_such_script": (("APP_ERROR",), None),
    "g_oom_cgroup": (("OOM_HOST",), "2"),
    "g2_oom_ulimit": (("OOM_HOST",), "2"),
    "h_port_in_use": (("ENV_ERROR",), None),
    "h2_rdzv_missing_node": (("NET_FABRIC",), None),
    "h3_rdzv_unreachable": (("NET_FABRIC",), None),
    "h4_static_master_missing": (("NET_FABRIC", "APP_ERROR"), None),
    "i_disk_full": (("ENV_ERROR",), "0"),
    "j2_elastic_exhausted": (("UNKNOWN",), "2"),
    "j5_elastic_c10d": (("APP_ERROR",), "2"),
    "k_flight_gloo": (("COMM_HANG",), "2"),
    "j3_errfile": (("APP_ERROR",), "2"),
    "j_elastic_recover": (("APP_ERROR",), "2"),
    "k2_fr_manual": (("COMM_HANG",), "2"),
    "l_node_lost": (("UNKNOWN", "HW_NODE"), None),
}


@dataclass(frozen=True)
class Scored:
    """One case and what was answered."""

    case: dict[str, Any]
    answer: dict[str, Any]

    @property
    def label(self) -> str:
        return str(self.case["class"])

    @property
    def said(self) -> str:
        return str(self.answer["fault_class"])

    @property
    def strict(self) -> bool:
        return self.said == self.label

    @property
    def lenient(self) -> bool:
        return self.said in (self.label, self.case["second_best_class"])

    @property
    def false_stop(self) -> bool:
        return self.answer["retry"] == "useless" and self.label in CURED

    @property
    def false_exclude(self) -> bool:
        named = str(self.case["culprit_rank_or_node"])
        return any(self.label not in ("HW_NODE", "NET_FABRIC") and node not in named for node in self.answer["exclude"])

    @property
    def culprit(self) -> bool | None:
        """Whether a suspect is the label's culprit; ``None`` where the label names nobody."""
        names = culprits(self.case["culprit_rank_or_node"])
        if not names:
            return None
        return any(
            (s["kind"], s["name"]) in names or s["name"] in {n for _, n in names} for s in self.answer["suspects"]
        )


def culprits(label: str | None) -> set[tuple[str, str]]:
    """Return whom a label names. "peer of rank 1" and "all ranks" name nobody."""
    if not label or re.search(r"\ball\b|\bpeer of\b|both nodes|combination|volume|tasks", label):
        return set()
    told = label.split(" (")[0]
    told = re.sub(r"rank \d+ is the victim;? ?", "", told)
    found = {("rank", number) for number in re.findall(r"rank (\d+)", told)}
    found |= {("gpu", number) for number in re.findall(r"GPU (\d+)\b", told)}
    found |= {("address", address) for address in re.findall(r"\d+\.\d+\.\d+\.\d+", told)}
    found |= {("gpu", address) for address in re.findall(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.\d)?", told)}
    if re.fullmatch(r"[a-z][\w.-]*\d[\w.-]*", told):
        found.add(("node", told))
    return found


# --- accuracy ------------------------------------------------------------------------------------------------------


def read_corpus(shared: Path) -> list[dict[str, Any]]:
    """Return the labelled cases."""
    return [json.loads(file.read_text()) for file in sorted((shared / "corpus").glob("*.json"))]


def score(cases: Iterable[dict[str, Any]], rules: RuleSet) -> list[Scored]:
    """Classify every case."""
    scored = []
    for case in cases:
        facts = facts_of_text(
            case["text"], rules, kind=case["kind"].replace("multi_rank_log", "log"), exit_code=case["exit_code"]
        )
        scored.append(Scored(case, as_answer(classify(facts, rules))))
    return scored


def summary(scored: list[Scored]) -> dict[str, Any]:
    """Return the measures."""
    named = [culprit for item in scored if (culprit := item.culprit) is not None]
    per_class = {}
    for name in CLASSES:
        hits = sum(item.strict and item.label == name for item in scored)
        told, labelled = sum(item.said == name for item in scored), sum(item.label == name for item in scored)
        precision, recall = hits / told if told else 0.0, hits / labelled if labelled else 0.0
        f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
        per_class[name] = {"n": labelled, "precision": precision, "recall": recall, "f1": f1}
    return {
        "n": len(scored),
        "strict": _share(item.strict for item in scored),
        "lenient": _share(item.lenient for item in scored),
        "macro_f1": sum(told["f1"] for told in per_class.values()) / len(per_class),
        "false_stop": _share(item.false_stop for item in scored),
        "false_exclude": _share(item.false_exclude for item in scored),
        "culprit": _share(named),
        "culprit_n": len(named),
        "per_class": per_class,
        "per_kind": {
            kind: {
                "n": len(items),
                "strict": _share(i.strict for i in items),
                "lenient": _share(i.lenient for i in items),
            }
            for kind, items in _grouped(scored, lambda item: item.case["kind"]).items()
        },
        "calibration": calibration(scored),
        "confusion": {
            f"{label} -> {said}": number
            for (label, said), number in sorted(Counter((i.label, i.said) for i in scored if not i.strict).items())
        },
    }


def calibration(scored: list[Scored]) -> dict[str, Any]:
    """Return accuracy per band of confidence, and the expected calibration error."""
    bands = _grouped(scored, lambda item: min(int(item.answer["confidence"] * 5), 4))
    table, error = {}, 0.0
    for band, items in sorted(bands.items()):
        told = sum(item.answer["confidence"] for item in items) / len(items)
        right = _share(item.strict for item in items)
        table[f"{band / 5:.1f}-{band / 5 + 0.2:.1f}"] = {"n": len(items), "confidence": told, "right": right}
        error += abs(told - right) * len(items) / len(scored)
    return {"bands": table, "expected_error": error}


def without_each_source(cases: list[dict[str, Any]], rules: RuleSet) -> dict[str, Any]:
    """Return strict and lenient accuracy without the signatures of one file, for every file."""
    results = {}
    for origin in sorted({signature.origin for signature in rules.signatures}):
        rest = compile_signatures([signature for signature in rules.signatures if signature.origin != origin])
        scored = score(cases, rest)
        results[origin] = {
            "strict": _share(item.strict for item in scored),
            "lenient": _share(item.lenient for item in scored),
            "false_stop": _share(item.false_stop for item in scored),
        }
    return results


def torch_logs(shared: Path, rules: RuleSet) -> dict[str, Any]:
    """Return what was answered on the real torchrun logs, and which answers were wrong."""
    wrong, answers = [], {}
    for folder, (classes, culprit) in TORCH_LOGS.items():
        place = shared / "torch-logs" / folder
        if not place.is_dir():
            continue
        answer = as_answer(classify(read_inputs([str(place)], rules), rules))
        names = {suspect["name"] for suspect in answer["suspects"]}
        right = answer["fault_class"] in classes and (culprit is None or culprit in names)
        answers[folder] = f"{answer['fault_class']} {sorted(names)} {answer['confidence']}"
        if not right:
            wrong.append(folder)
    return {"n": len(answers), "right": len(answers) - len(wrong), "wrong": wrong, "answers": answers}


def _share(values: Iterable[bool]) -> float:
    told = list(values)
    return sum(told) / len(told) if told else 0.0


def _grouped(scored: list[Scored], key: Callable[[Scored], Any]) -> dict[Any, list[Scored]]:
    groups: dict[Any, list[Scored]] = defaultdict(list)
    for item in scored:
        groups[key(item)].append(item)
    return dict(groups)


# --- speed and memory ----------------------------------------------------------------------------------------------


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


def write_log(path: Path, megabytes: float, corpus: list[dict[str, Any]]) -> None:
    """Write a log like a real one: steps of eight ranks, NCCL's notes, warnings, a rare handled error, then an end."""
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
    with path.open("wb") as file:
        for _ in range(max(1, int(megabytes * 1e6 / len(block)))):
            file.write(block)
        file.write(end)


def speed(corpus: list[dict[str, Any]], rules: RuleSet, megabytes: float) -> dict[str, Any]:
    """Return megabytes per second of the classifier and of grep, on the same log, each the best of three by turns."""
    with tempfile.TemporaryDirectory() as folder:
        log, words = Path(folder, "train.log"), Path(folder, "words")
        write_log(log, megabytes, corpus)
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
    """Return the most memory that a process of its own needs to classify a log of this size."""
    program = (
        "import resource, sys\n"
        "from airflow_ft.core.classify import classify\n"
        "from airflow_ft.diagnosis.inputs import read_inputs\n"
        "from airflow_ft.diagnosis.signature_files import load_rules\n"
        "classify(read_inputs([sys.argv[1]], load_rules()), load_rules())\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "train.log")
        write_log(log, megabytes, corpus)
        done = subprocess.run([sys.executable, "-c", program, str(log)], capture_output=True, text=True, check=True)
        return {"gigabytes": log.stat().st_size / 1e9, "max_rss_mib": float(done.stdout)}


# --- the report ----------------------------------------------------------------------------------------------------


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=SHARED)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--misses", action="store_true", help="print the cases that were missed")
    parser.add_argument("--sources", action="store_true", help="leave out the signatures of each file in turn")
    parser.add_argument("--speed", type=float, default=0.0, metavar="MB", help="measure on a log of this size (500)")
    parser.add_argument("--memory", type=float, default=0.0, metavar="MB", help="measure on a log of this size (10000)")
    arguments = parser.parse_args()
    rules = load_rules()
    corpus = read_corpus(arguments.shared)
    scored = score(corpus, rules)
    report: dict[str, Any] = {"signatures": len(rules.signatures), **summary(scored)}
    report["torch_logs"] = torch_logs(arguments.shared, rules)
    if arguments.sources:
        report["without_source"] = without_each_source(corpus, rules)
    if arguments.speed:
        report["speed"] = speed(corpus, rules, arguments.speed)
    if arguments.memory:
        report["memory"] = memory(arguments.memory, corpus)
    if arguments.misses:
        _print_misses(scored)
    print(json.dumps(report, indent=1, default=str))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def _print_misses(scored: list[Scored]) -> None:
    for item in scored:
        marks = [
            name
            for name, bad in (
                ("STRICT", not item.strict),
                ("LENIENT", not item.lenient),
                ("STOP", item.false_stop),
                ("EXCLUDE", item.false_exclude),
                ("CULPRIT", item.culprit is False),
            )
            if bad
        ]
        if marks:
            root, answer = (item.answer["root"] or {}).get("text", ""), item.answer
            print(
                f"{item.case['id']} {','.join(marks)}: {item.label}/{item.case['second_best_class']} said {item.said}"
                f"/{answer['second_class']} {answer['retry']} {answer['signature']} {answer['confidence']} culprit "
                f"{item.case['culprit_rank_or_node']!r} suspects {[s['name'] for s in answer['suspects']]} {root[:90]}"
            )


if __name__ == "__main__":
    main()
