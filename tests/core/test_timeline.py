"""Logs of nodes with different clocks, and what the last good attempt said, too."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from airflow_ft.core.classify import classify
from airflow_ft.core.facts import Facts, LogText
from airflow_ft.core.faults import Diagnosis
from airflow_ft.core.timeline import Timeline, align
from airflow_ft.diagnosis.signature_files import load_rules

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
FABRIC = "NCCL WARN NET/IB : Got completion from peer 10.0.0.9<4> with status=12 opcode=0 len=0 vendor err 129"


def log(node: str, ahead: float, error: str, at: float, *, steps: bool = True) -> LogText:
    """A node's log: a step each ten seconds, then an error ``at`` seconds after noon of the true time."""
    lines = [(second, f"step {second // 10} loss 2.0") for second in range(0, 100, 10)] if steps else []
    lines.append((at, error))
    stamped = [f"{(NOON + timedelta(seconds=s + ahead)).strftime('%Y-%m-%d %H:%M:%S')} {text}" for s, text in lines]
    return LogText(f"{node}/output", "\n".join(stamped).encode(), node)


def diagnose(*logs: LogText, good: tuple[LogText, ...] = ()) -> Diagnosis:
    return classify(Facts(logs=logs, good_logs=good), load_rules())


@pytest.mark.row("P2")
@pytest.mark.story("CLS-11")
@pytest.mark.parametrize("ahead", [0.0, 900.0, -900.0, 86_400.0])
def test_the_first_root_is_found_whatever_a_nodes_clock_says(ahead: float) -> None:
    """n2's memory ran out three seconds before n1 saw its link fail; n2's clock may be a quarter of an hour off."""
    first = log("n2", ahead, "MemoryError", 95)
    second = log("n1", 0.0, FABRIC, 98)
    for logs in ((first, second), (second, first)):
        told = diagnose(*logs)
        assert told.root is not None
        assert (told.fault_class.value, told.root.node) == ("OOM_HOST", "n2")


def test_a_second_is_not_trusted() -> None:
    timeline = align({"a": {1: 10.0, 2: 20.0}, "b": {1: 910.0, 2: 920.0}})
    assert timeline.ahead["b"] - timeline.ahead["a"] == 900.0
    items = [("a", 30.0), ("b", 930.6), ("b", 932.0)]
    assert timeline.first(items, lambda item: item) == items[:2]


def test_logs_without_common_steps_keep_their_own_time() -> None:
    timeline = align(
        {"a": {1: 10.0, 2: 20.0}, "b": {7: 910.0, 8: 920.0}, "c": {}}, [("a", "n1"), ("c", "n1"), ("b", "n2")]
    )
    assert timeline.ahead == {"a": 0.0, "c": 0.0}, "c is on the node of a"
    assert Timeline().first([("a", None), ("b", 2.0)], lambda item: item) == [("a", None), ("b", 2.0)]


def test_a_rank_that_prints_late_tells_no_offset() -> None:
    assert align({"a": {1: 10.0, 2: 20.0, 3: 30.0}, "b": {1: 11.0, 2: 60.0, 3: 31.0}}).ahead == {"a": 0.0}


def test_what_the_last_good_attempt_said_is_no_candidate() -> None:
    """Without a step of its own, a run is compared with the last one that went well."""
    usual = [f"loading part {n} of the tokenizer table" for n in range(30)]
    usual += ["note: cannot find optional cache, building it", "compiling graph"]
    good = LogText("good/output", "\n".join([*usual, "step 1 loss 2.0"]).encode())
    bad = LogText("n1/output", "\n".join([*usual, "shard index disagrees with its manifest at row 12"]).encode())
    told = diagnose(bad, good=(good,))
    assert told.fault_class.value == "UNKNOWN"
    assert told.root is not None
    assert told.root.text.startswith("shard index disagrees")
    assert "never seen before" in told.text
