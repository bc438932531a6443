from __future__ import annotations

from datetime import datetime, timezone

import pytest

from airflow_ft.core.loglines import lines_of
from airflow_ft.core.progress import ProgressReader
from airflow_ft.core.recovery import Recovery, begin, ended, follow
from tests.shared_inputs import shared, story

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)


def states(recovery: Recovery, lines: list[str]) -> dict[int | None, Recovery]:
    """Follow line by line. Returns the recovery as it was at each step."""
    reader, found = ProgressReader(), {}
    for line in lines:
        reader.feed(line, AT, "n1/output")
        recovery = follow(recovery, reader.progress)
        found[reader.progress.step] = recovery
    return found


def lines(name: str) -> list[str]:
    return lines_of(shared("stories", name).read_bytes())


@pytest.mark.row("S15")
@pytest.mark.story("PRG-03")
def test_recovered_only_beyond_the_step_that_was_reached() -> None:
    found = states(begin(212, 200, 2.076), lines("PRG-resume-regress/attempt1.log"))
    assert [found[step].state for step in (201, 212, 213)] == ["pending", "pending", "recovered"]
    assert (found[213].loaded_checkpoint, found[213].passed_step, found[213].loss_after) == (200, 213, 2.074)


@pytest.mark.story("RST-04")
def test_restarted_from_the_beginning_is_said_before_it_passes() -> None:
    expected = story("RST-from-scratch")
    found = states(
        begin(expected["died_at_step"], expected["expected_checkpoint_step"], expected["loss_before"]),
        lines("RST-from-scratch.log"),
    )
    assert found[None].state == "from_scratch"
    assert "from the beginning" in found[3].text


@pytest.mark.story("RST-05")
def test_resumed_with_a_gap_is_not_recovered() -> None:
    expected = story("RST-step-jump")
    found = states(begin(expected["died_at_step"], expected["expected_checkpoint_step"]), lines("RST-step-jump.log"))
    assert found[503].state == "gap"
    assert f"{expected['skipped_steps']} steps" in found[503].text


def test_steps_that_are_printed_with_gaps_are_no_gap() -> None:
    found = states(begin(200, 200), ["resumed from checkpoint step 200", "step 210", "step 220"])
    assert found[220].state == "recovered"


def test_a_load_that_nobody_printed_is_known_from_the_first_step() -> None:
    found = states(begin(45, 40), [f"step {n}" for n in range(41, 47)])
    assert (found[46].state, found[46].loaded_checkpoint) == ("recovered", 40)


def test_another_checkpoint_than_the_expected_one_is_not_recovered() -> None:
    found = states(begin(45, 40), ["resumed from checkpoint step 20", *[f"step {n}" for n in range(21, 48)]])
    assert found[47].state == "pending"
    assert "20 instead of 40" in found[47].text


@pytest.mark.parametrize(("expected", "state"), [(None, "pending"), (0, "recovered")])
def test_without_a_checkpoint_the_beginning_is_right_only_if_none_was_there(expected: int | None, state: str) -> None:
    found = states(begin(2, expected), ["starting from scratch", "step 1", "step 2", "step 3"])
    assert found[3].state == state


def test_unknown_steps_stay_pending_and_fail_at_the_end() -> None:
    recovery = follow(begin(None, None), ProgressReader.rebuilt([("n1", "step 50")], AT).progress)
    assert recovery.state == "pending"
    assert "not known" in recovery.text
    assert ended(begin(5, 4)).state == "failed"


def test_what_is_final_stays() -> None:
    done = states(begin(2, 1), ["step 2", "step 3"])[3]
    assert done.state == "recovered"
    assert ended(done) is done
    assert follow(done, ProgressReader.rebuilt([("n1", "step 1")], AT).progress) is done
