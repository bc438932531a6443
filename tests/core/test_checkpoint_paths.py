"""Where the newest checkpoint is, as training itself says it: what the next attempt is told to resume from."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from airflow_ft.core.progress import Progress, ProgressReader
from airflow_ft.core.steplines import read_line

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)


def read(*lines: str) -> Progress:
    return ProgressReader.rebuilt([("n1/output", line) for line in lines], AT).progress


@pytest.mark.story("RST-07")
@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("saved checkpoint step 60 (/data/my run/step-60.pt)", "/data/my run/step-60.pt"),
        ("Saving model checkpoint to ./out/checkpoint-500", "./out/checkpoint-500"),
        ("Saving model checkpoint to out/checkpoint-500", "out/checkpoint-500"),
        ("  successfully saved checkpoint from iteration     100 to /ckpt/gpt [ t 1/1, p 1/1 ]", "/ckpt/gpt"),
        ("Saved checkpoint to s3://bucket/run/step_100.", "s3://bucket/run/step_100"),
        ("saved checkpoint 'logs/version 0/epoch=1-step=10.ckpt'", "logs/version 0/epoch=1-step=10.ckpt"),
        ('{"checkpoint": 7, "checkpoint_path": "/a/7"}', "/a/7"),
        ("saved /x/step-10.pt, optimizer state in /tmp/other", "/x/step-10.pt"),
        ("saved checkpoint 12/500 at 3 it/s", None),  # a ratio and a rate
        ("saved checkpoint step=12", None),
        (f"saved checkpoint step 1 (/{'x' * 1001})", None),
        ("Finished saving the checkpoint (or staging if async is enabled)in 5.53 seconds.", None),
    ],
)
def test_the_path_is_read_where_the_line_shows_one(line: str, path: str | None) -> None:
    assert read_line(line).path == path


def test_a_path_belongs_to_its_checkpoint_and_to_no_other() -> None:
    first = read("step 10", "saved checkpoint step 10 (/c/10.pt)")
    assert (first.checkpoint, first.checkpoint_path) == (10, "/c/10.pt")
    second = read("step 10", "saved checkpoint step 10 (/c/10.pt)", "step 20", "saved checkpoint step 20")
    assert (second.checkpoint, second.checkpoint_path) == (20, None)
    told_twice = read("saved checkpoint step 10 (/c/10.pt)", "saved checkpoint step 10")
    assert told_twice.checkpoint_path == "/c/10.pt"


@pytest.mark.parametrize("end", ["saved checkpoint", "saved checkpoint step 10", "step 11"])
def test_the_path_of_a_save_that_was_announced_counts_when_it_has_ended(end: str) -> None:
    lines = ("step 9", "step 10", "saving checkpoint to /c/step_10")
    assert read(*lines).checkpoint_path is None
    assert (read(*lines, end).checkpoint, read(*lines, end).checkpoint_path) == (10, "/c/step_10")


def test_a_save_that_never_ended_leaves_the_one_before() -> None:
    lines = ("step 10", "saved checkpoint step 10 (/c/10)", "step 20", "saving checkpoint step 20 to /c/20")
    assert (read(*lines).checkpoint, read(*lines).checkpoint_path) == (10, "/c/10")


def test_the_reader_goes_on_with_it_after_its_state_was_saved() -> None:
    reader = ProgressReader.rebuilt([("a", "step 10"), ("a", "saving checkpoint to /c/step_10")], AT)
    successor = ProgressReader.from_state(reader.to_state())
    successor.feed("step 11", AT, "a")
    assert successor.progress.checkpoint_path == "/c/step_10"
