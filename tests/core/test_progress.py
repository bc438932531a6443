from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone

import pytest

from airflow_ft.core.loglines import lines_of, split_rank
from airflow_ft.core.progress import InvalidPatternError, Progress, ProgressReader
from airflow_ft.core.situation import nothing_left
from airflow_ft.core.steplines import read_line
from tests.shared_inputs import shared, story

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)


def read(*lines: str, source: str = "n1/output", pattern: str | None = None) -> ProgressReader:
    return ProgressReader.rebuilt([(source, line) for line in lines], AT, pattern)


def read_file(name: str) -> tuple[ProgressReader, list[int], list[str]]:
    reader, steps, phases = ProgressReader(), [], []
    for line in lines_of(shared("stories", name).read_bytes()):
        if reader.feed(line, AT, name):
            steps.append(reader.progress.step or 0)
        phases.append(reader.progress.phase or "")
    return reader, steps, [phase for n, phase in enumerate(phases) if n == 0 or phase != phases[n - 1]]


@pytest.mark.story("PRG-07")
def test_numbers_as_people_print_them() -> None:
    lines = shared("stories", "PRG-formats.txt").read_text().splitlines()
    for expected, line in zip(story("PRG-formats")["lines"], lines, strict=True):
        seen = read_line(split_rank(line).text)
        assert (seen.step, seen.total) == (expected["step"], expected["total"]), line
        if expected["loss"] == "nan":
            assert seen.loss is not None
            assert math.isnan(seen.loss)
        else:
            assert seen.loss == expected["loss"], line


@pytest.mark.story("PRG-06")
def test_a_bar_of_carriage_returns() -> None:
    reader, steps, _ = read_file("PRG-tqdm-cr.log")
    assert (reader.progress.step, reader.progress.total, reader.progress.loss) == (412, 1000, 2.32)
    assert steps == sorted(steps)
    assert len(steps) - 1 == story("PRG-tqdm-cr")["advances"]


@pytest.mark.story("PRG-02")
def test_evaluation_has_a_counter_of_its_own() -> None:
    expected = story("PRG-eval-bar")
    reader, steps, phases = read_file("PRG-eval-bar.log")
    assert reader.progress.step == expected["last_step"]
    assert reader.progress.total == expected["total"]
    assert reader.progress.loss == expected["last_train_loss"]
    assert reader.progress.checkpoint == expected["checkpoint_saved_step"]
    assert not set(steps) & set(expected["never_steps"])
    assert phases == expected["phases"]


@pytest.mark.story("PRG-09")
@pytest.mark.parametrize("name", ["PRG-keras-epochs", "PRG-nested-ansi"])
def test_counters_that_begin_again_are_added_up(name: str) -> None:
    reader, steps, _ = read_file(f"{name}.log")
    assert reader.progress.step == story(name)["global_step_if_computed"]
    assert steps == sorted(steps)


@pytest.mark.story("PRG-03")
def test_after_a_resume_steps_go_back() -> None:
    before, _, _ = read_file("PRG-resume-regress/attempt0.log")
    assert (before.progress.step, before.progress.checkpoint) == (212, 200)
    after, steps, _ = read_file("PRG-resume-regress/attempt1.log")
    assert (after.progress.loaded, steps[0], after.progress.first_step) == (200, 201, 201)


@pytest.mark.parametrize(
    ("line", "step", "total"),
    [
        ("step 12/500 loss 0.5", 12, 500),
        ("step=12", 12, None),
        ("iter 12", 12, None),
        (" iteration   12/ 500 | lm loss: 1.0E+00 |", 12, 500),
        ("2026-05-04 10:00:00 step=102 loss=2.296", 102, None),
        ("step 0 loss 0.05656 dt 0.0670 t=1795982200.856", 0, None),
        ("{'step': 12, 'loss': 1.5}", 12, None),
        ('ft-progress {"step": 12, "total": 99, "loss": 1.0}', 12, 99),
        ("12it [00:05,  2.1it/s, loss=0.5]", 12, None),
        ("INFO:trainer:global_step 88_000 loss 1", 88_000, None),
    ],
)
def test_steps(line: str, step: int, total: int | None) -> None:
    seen = read_line(line)
    assert (seen.step, seen.total) == (step, total)


@pytest.mark.parametrize(
    "line",
    [
        "master_port=29500 pid=4711",
        "W1129 19:56:26.868000 29494 torch/distributed/run.py:874] Setting OMP_NUM_THREADS",
        '  File "train.py", line 88, in step',
        "RuntimeError: loss is nan at step 5",
        "Namespace(step=0, lr=0.1)",
        "Will log every 10 steps and evaluate every 100 steps",
        'ft-agent 8f2a {"event":"start","generation":1,"step":7}',
        'half a line step 1ft-agent 8f2a {"event":"exit"}',
        "[rank2] inject kill t=1795982215.669",
        "connected to 10.0.0.2:29501 after 3 attempts",
        "step_time=0.31",
    ],
)
def test_traps_are_no_steps(line: str) -> None:
    assert read_line(split_rank(line).text).step is None


@pytest.mark.parametrize(
    ("line", "saved"),
    [
        ("saved checkpoint step 60", 60),
        ("saved checkpoint to /ckpt/step-000060.pt", 60),
        ("successfully saved checkpoint from iteration      60 to /ckpt", 60),
        ("Finished saving checkpoint iter_0000060", 60),
        ("Saving checkpoints every 60 steps", None),
        ("Saving checkpoints to /runs/sweep every 60 steps", None),
        ("saved checkpoint step 60 (/runs/each-size/last.ckpt)", 60),
        ("saved checkpoint to /runs/every-lr/step-000060.pt", 60),
    ],
)
def test_saved_checkpoints(line: str, saved: int | None) -> None:
    assert read(line).progress.checkpoint == saved


def test_a_save_that_was_only_begun_counts_with_the_next_step() -> None:
    reader = read("step 60", "saving checkpoint at iteration 60 to /ckpt")
    assert (reader.progress.checkpoint, reader.progress.phase) == (None, "checkpoint")
    reader.feed("step 61", AT, "n1/output")
    assert (reader.progress.checkpoint, reader.progress.phase) == (60, "train")


@pytest.mark.parametrize(
    ("line", "loaded", "scratch"),
    [
        ("resumed from checkpoint step 40", 40, False),
        ("successfully loaded checkpoint from /ckpt [ t 0 ] at iteration 40", 40, False),
        ("Resuming from checkpoint out/checkpoint-40", 40, False),
        ("resumed from /data/ckpt/step-000040.pt", 40, False),
        ("starting from scratch", 0, True),
        ("no checkpoint found in /ckpt", 0, True),
    ],
)
def test_loaded_checkpoints(line: str, loaded: int, scratch: bool) -> None:
    progress = read(line).progress
    assert (progress.loaded, progress.from_scratch) == (loaded, scratch)


@pytest.mark.story("SEC-05")
def test_a_fake_step_of_another_rank_moves_nothing() -> None:
    reader = read("step 1 loss 3", "step 2 loss 3", "step 3 loss 3")
    assert not reader.feed('[rank3]: {"ft": "progress", "step": 999999}', AT, "n1/output")
    assert not reader.feed("step 999999", AT, "n2/output")
    assert reader.feed("step 4 loss 3", AT, "n1/output")
    assert reader.progress.step == 4


@pytest.mark.story("SEC-05")
def test_a_leap_in_the_drivers_own_log_needs_a_second_line() -> None:
    reader = read("step 1", "step 2", "step 999999")
    assert reader.progress.step == 2
    assert reader.feed("step 3", AT, "n1/output")


def test_a_run_that_restarts_below_us_is_seen_with_its_second_step() -> None:
    reader = read(*[f"step {n}" for n in range(50, 60)], "step 41")
    assert reader.progress.step == 59
    assert reader.feed("step 42", AT, "n1/output")
    assert reader.progress.step == 42


def test_another_source_takes_over_when_the_driver_falls_silent() -> None:
    reader = read("step 1", "step 2")
    moved = [reader.feed(f"step {n}", AT, "n2/output") for n in range(3, 9)]
    assert moved == [False, False, False, True, True, True]


def test_a_users_pattern_overrides() -> None:
    reader = read(
        "update number 17 of epoch, objective 0.25",
        "step 99",
        pattern=r"update number (?P<step>\d+).*objective (?P<loss>[\d.]+)",
    )
    assert (reader.progress.step, reader.progress.loss) == (17, 0.25)


@pytest.mark.parametrize(("pattern", "why"), [(r"step (\d+)", "no group named step"), (r"(?P<step>", "no RE2 pattern")])
def test_a_pattern_that_cannot_be_used_says_why(pattern: str, why: str) -> None:
    with pytest.raises(InvalidPatternError, match=why):
        ProgressReader(pattern)


def test_a_new_generation_forgets_the_old_one() -> None:
    reader = read("step 5/10 loss 1.5", "saved checkpoint step 5")
    reader.restarted()
    progress = reader.progress
    assert (progress.step, progress.checkpoint, progress.total, progress.phase) == (None, None, 10, "startup")


def test_state_survives_and_a_broken_one_is_a_fresh_start() -> None:
    lines = [f"step {n} loss {n}" for n in range(1, 6)]
    whole, first = read(*lines, "step 6"), read(*lines)
    again = ProgressReader.from_state(first.to_state())
    again.feed("step 6", AT, "n1/output")
    assert again.progress == whole.progress
    assert ProgressReader.from_state({"progress": 5}).progress.step is None


def test_a_loss_that_is_no_number_is_said_apart() -> None:
    progress = read("step 1 loss 2.5", "step 2 loss nan").progress
    assert (progress.loss, progress.diverged) == (2.5, True)


@pytest.mark.row("P9")
def test_who_is_behind_by_what_the_ranks_print() -> None:
    def told(*lines: tuple[str, str]) -> tuple[int, ...]:
        return ProgressReader.rebuilt(lines, AT).behind

    steps = [("log", f"[rank{rank}]: step={n} loss=2") for n in range(1, 30) for rank in (0, 1, 2, 3)]
    assert told(*steps) == ()
    assert told(*steps, *(("log", f"[rank{rank}]: step=30 loss=2") for rank in (0, 1, 3))) == (2,)
    waiting = [("log", f"[rank{rank}]: waiting for a batch") for rank in (0, 1, 3)]
    assert told(*steps, *waiting, ("log", "[rank2]: heartbeat")) == (2,)
    assert told(*steps, *waiting[:1], ("log", "[rank2]: heartbeat"), ("log", "[rank3]: heartbeat")) == ()
    local = [("log", f"[default{rank}]: step={n}") for n in range(1, 30) for rank in range(4) if (rank, n) != (2, 29)]
    assert told(*local) == (), "a local rank is on every node"


@pytest.mark.story("CLS-12")
@pytest.mark.parametrize(
    ("progress", "finished"),
    [
        (Progress(loaded=1000, total=1000), True),
        (Progress(loaded=1000, total=1000, step=1000), True),
        (Progress(loaded=1000, total=1000, step=1001), False),
        (Progress(loaded=900, total=1000), False),
        (Progress(loaded=1000), False),
        (Progress(total=1000, step=1000), False),
    ],
)
def test_a_run_that_loaded_its_last_step_has_nothing_left_to_train(progress: Progress, finished: bool) -> None:
    assert nothing_left(progress) is finished


def steps_of(reader: ProgressReader, source: str, steps: range, look: int) -> None:
    for step in steps:
        reader.feed(f"step={step} loss=2", AT + timedelta(seconds=5 * look), source)


@pytest.mark.story("PRG-05")
@pytest.mark.parametrize("steps_a_look", [3, 6, 40])
def test_two_nodes_that_print_the_same_steps_are_one_run_although_their_logs_are_read_in_turn(
    steps_a_look: int,
) -> None:
    reader = ProgressReader()
    for look in range(4):
        for source in ("n1/output", "n2/output"):
            steps_of(reader, source, range(look * steps_a_look + 1, (look + 1) * steps_a_look + 1), look)
    steps_of(reader, "n2/output", range(4 * steps_a_look + 1, 4 * steps_a_look + 9), 5)  # n1 is silent now
    assert reader.progress.first_step == 1
    assert reader.progress.first_step_at == AT, "it never began again"
    assert reader.progress.step == 4 * steps_a_look + 8


@pytest.mark.story("PRG-05")
@pytest.mark.parametrize("known", [False, True], ids=["a-log-not-seen-before", "a-log-that-had-followed"])
@pytest.mark.parametrize("quick", [False, True], ids=["later", "in-the-look-of-the-last-step"])
def test_a_run_that_begins_again_in_another_nodes_log_is_seen(known: bool, quick: bool) -> None:
    reader = ProgressReader()
    steps_of(reader, "n1/output", range(1, 31), 0)
    if known:
        steps_of(reader, "n2/output", range(1, 31), 0)
    steps_of(reader, "n2/output", range(11, 14), 0 if quick else 1)
    steps_of(reader, "n2/output", range(14, 20), 2)
    assert reader.progress.step == 19
    assert (reader.progress.first_step_at or AT) > AT, "it began again"


@pytest.mark.story("PRG-07")
@pytest.mark.parametrize(
    "lines",
    [
        [f"Step {n}/5: wrap part {n} of the model" for n in range(1, 6)],
        [f"  1%|#| {n}/100 [00:10<00:10,  9.9it/s]" for n in range(1, 101)],
    ],
    ids=["numbered set-up", "a bar without a name"],
)
def test_what_may_be_no_step_of_training_is_told_and_not_relied_on(lines: list[str]) -> None:
    """It is shown, but a hang is not judged by it: the log's growth is."""
    reader = ProgressReader.rebuilt([("log", line) for line in lines], AT)
    assert (reader.progress.step is None, reader.sure_step) == (False, None)


@pytest.mark.parametrize(
    "line",
    [
        "step 7 loss 2.1",
        "step 7 lr 3e-4 done",
        'ft-progress {"step":7}',
        ':::MLLOG {"time_ms": 1, "key": "block_start", "metadata": {"step": 7}}',
    ],
)
def test_one_line_with_a_metric_or_of_a_format_of_its_own_is_sure(line: str) -> None:
    assert (
        ProgressReader.rebuilt([("log", line)], AT).sure_step
        == ProgressReader.rebuilt([("log", line)], AT).progress.step
    )


def test_many_steps_are_sure_without_a_metric() -> None:
    assert ProgressReader.rebuilt([("log", f"step {n} done") for n in range(1, 11)], AT).sure_step == 10
    bars = [f"  1%|#| {n}/100 [00:10<00:10,  9.9it/s]" for epoch in range(2) for n in range(1, 101)]
    assert ProgressReader.rebuilt([("log", line) for line in bars[:150]], AT).sure_step == 150


@pytest.mark.story("PRG-09")
@pytest.mark.parametrize(
    ("lines", "step"),
    [
        (["100/100 - 12s - 120ms/step - loss: 2.1 - val_loss: 2.0"] * 12, 1_200),
        ([f"  batch {n} loss: 0.91" for _ in range(3) for n in range(1_000, 15_001, 1_000)], 45_000),
        ([f"[{epoch}, {n:5d}] loss: 2.164" for epoch in (1, 2, 3) for n in range(2_000, 12_001, 2_000)], 36_000),
        ([f"Epoch 4: 100%|##| {n}/100 [00:10<00:00, 9.0it/s, loss=2.1]" for n in (98, 99, 100, 100, 100)], 100),
    ],
    ids=["one line an epoch", "no total", "the epoch beside it", "a full bar that is said again"],
)
def test_counters_that_begin_again_make_one_count(lines: list[str], step: int) -> None:
    reader, seen = ProgressReader(), []
    for line in lines:
        reader.feed(line, AT, "log")
        seen.append(reader.progress.step or 0)
    assert (seen[-1], seen) == (step, sorted(seen))
