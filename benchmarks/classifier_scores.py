"""The scores of the classifier on labelled cases: for ``benchmarks.classifier`` and the tests.

Three sets of cases, all in one form (``kind``, ``exit_code``, ``text``; ``class``, ``second_best_class``,
``culprit_rank_or_node``):

- the labelled corpus beside the checkout (*in sample*: signatures were written while looking at it);
- ``tests/diagnosis/cases``: written later, from other failures. What the classifier said at first sight is kept in
  ``first_tries.json``: only that is a score on *unseen* cases; afterwards they are in sample as well;
- the real torchrun logs beside the checkout, whose folders' names say what was done.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from airflow_ft.core.calibration import chance, kind_of_evidence
from airflow_ft.core.classify import classify
from airflow_ft.core.rules import RuleSet
from airflow_ft.diagnosis.answers import as_answer
from airflow_ft.diagnosis.inputs import facts_of_text, read_inputs

SHARED = Path(__file__).resolve().parents[2] / "shared"
CASES = Path(__file__).resolve().parents[1] / "tests" / "diagnosis" / "cases"
FIRST_TRIES = CASES / "first_tries.json"
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
        cured = self.label in CURED or self.case.get("retry") == "useful"
        return self.answer["retry"] == "useless" and cured

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


def read_cases(folder: Path = CASES) -> list[dict[str, Any]]:
    """Return the project's own labelled cases."""
    found: list[dict[str, Any]] = []
    for file in sorted(folder.glob("*.yaml")):
        found += yaml.safe_load(file.read_text())
    return found


def first_tries(cases: Iterable[dict[str, Any]]) -> list[Scored]:
    """Return what was answered when each case was seen for the first time."""
    kept = json.loads(FIRST_TRIES.read_text()) if FIRST_TRIES.exists() else {}
    return [Scored(case, kept[case["id"]]) for case in cases if case["id"] in kept]


def by_round(scored: Iterable[Scored]) -> dict[str, list[Scored]]:
    """Return the cases by the first part of their id: those that were labelled and then seen together."""
    return _grouped(list(scored), lambda item: item.case["id"].partition(".")[0])


def evidence(scored: Iterable[Scored], rules: RuleSet) -> dict[str, tuple[int, int]]:
    """Return how often each kind of evidence was right: ``core.calibration.SEEN`` is this of all first tries."""
    table: dict[str, tuple[int, int]] = {}
    for item in scored:
        kind = kind_of_answer(item.answer, rules)
        if kind is not None:
            right, of = table.get(kind, (0, 0))
            table[kind] = right + item.strict, of + 1
    return dict(sorted(table.items()))


def kind_of_answer(answer: dict[str, Any], rules: RuleSet) -> str | None:
    """Return the kind of evidence of a recorded answer; ``None`` where nothing was known."""
    known = {signature.id: signature for signature in rules.signatures}
    signature = known.get(answer["signature"] or "")
    if signature is not None:
        return kind_of_evidence(signature)
    return "generic" if answer["fault_class"] == "APP_ERROR" else None


def cross_validated(scored: list[Scored], rules: RuleSet) -> dict[str, Any]:
    """Return the calibration on each round by the chances of the other rounds."""
    told = []
    for name, items in by_round(scored).items():
        others = evidence([item for item in scored if not item.case["id"].startswith(f"{name}.")], rules)
        for item in items:
            kind = kind_of_answer(item.answer, rules)
            sure = chance(kind, others) if kind else item.answer["confidence"]
            told.append(Scored(item.case, {**item.answer, "confidence": sure}))
    return calibration(told)


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
        "strict": share(item.strict for item in scored),
        "lenient": share(item.lenient for item in scored),
        "macro_f1": sum(told["f1"] for told in per_class.values()) / len(per_class),
        "false_stop": share(item.false_stop for item in scored),
        "false_exclude": share(item.false_exclude for item in scored),
        "culprit": share(named),
        "culprit_n": len(named),
        "per_class": per_class,
        "per_kind": {
            kind: {
                "n": len(items),
                "strict": share(i.strict for i in items),
                "lenient": share(i.lenient for i in items),
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
        right = share(item.strict for item in items)
        table[f"{band / 5:.1f}-{band / 5 + 0.2:.1f}"] = {"n": len(items), "confidence": told, "right": right}
        error += abs(told - right) * len(items) / len(scored)
    return {"bands": table, "expected_error": error}


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


def share(values: Iterable[bool]) -> float:
    """Return which share is true; 0 of none."""
    told = list(values)
    return sum(told) / len(told) if told else 0.0


def _grouped(scored: list[Scored], key: Callable[[Scored], Any]) -> dict[Any, list[Scored]]:
    groups: dict[Any, list[Scored]] = defaultdict(list)
    for item in scored:
        groups[key(item)].append(item)
    return dict(groups)
