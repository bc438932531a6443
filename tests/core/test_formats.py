"""The formats that frameworks print, whole logs of each: steps, losses, phases, and the name that is found."""

# ruff: noqa: E501 - lines as they are printed

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from airflow_ft.core.progress import ProgressReader
from airflow_ft.core.steplines import read_line

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)

# name, a line as a template of {n}, the last step of 40 lines n = 10, 20, … 400, the last loss
FORMATS = [
    (
        "Megatron-LM",
        "[2024-05-01 12:00:00.123] iteration {n:8d}/  500000 | consumed samples: 5120 | elapsed time per iteration (ms):"
        " 612.4 | learning rate: 2.9E-04 | lm loss: 2.114302E+00 | grad norm: 0.412 |",
        2.114302,
    ),
    ("DeepSpeed", "[2024-05-01 12:00:00,1] [INFO] [logging.py:96:log_dist] [Rank 0] step={n}, skipped=2, lr=[1.9e-05]", None),
    (
        "DeepSpeed",
        "[INFO] [timer.py:199:stop] epoch=0/micro_step={n}/global_step={n}, RunningAvgSamplesPerSec=85.1",
        None,
    ),
    ("torchtitan", "[titan] 2025-01-01 10:00:00,123 - root - INFO - step: {n:,}  loss:  7.3012  tps: 8,812  mfu: 41.46%", 7.3012),
    ("MaxText", "completed step: {n}, seconds: 1.234, TFLOP/s/device: 210.1, Tokens/s/device: 3012.1, loss: 9.123", 9.123),
    ("nanoGPT", "iter {n}: loss 3.0123, time 135.20ms, mfu 41.2%", 3.0123),
    ("modded-nanoGPT", "step:{n}/1770 train_time:1234ms step_avg:102.83ms", None),
    ("NeMo", "Training epoch 0, iteration {n}/999 | lr: 1.8e-07 | global_step: {n} | reduced_train_loss: 10.32", 10.32),
    ("fairseq", "2022-03-01 12:00:00 | INFO | train_inner | epoch 001: {n:6d} / 1500 loss=12.2, gnorm=2.1, num_updates={n}", 12.2),
    ("fairseq", '| INFO | train_inner | {{"epoch": 1, "loss": "12.2", "num_updates": "{n}", "lr": "0.0001", "gnorm": "2"}}', 12.2),
    ("MMEngine", "2024/01/01 12:00:00 - mmengine - INFO - Epoch(train)  [1][{n:4d}/7330]  lr: 1e-3  eta: 10:01:20  loss: 2.01", 2.01),
    ("MMEngine", "2024/01/01 12:00:00 - mmengine - INFO - Iter(train) [{n:5d}/90000]  lr: 1.9e-03  eta: 10:01:20  loss: 2.01", 2.01),
    ("Composer", "[epoch=1][batch={n}/625]:", None),
    ("Lightning", "Epoch 2:  41%|####1     | {n}/500 [02:11<03:08,  1.57it/s, v_num=7, train_loss=0.884]", 0.884),
    ("Keras", "{n}/500 [===>..........] - ETA: 59s - loss: 0.9 - acc: 0.9", 0.9),
    ("tqdm", "  5%|5         | {n}/2000 [01:44<15:37,  1.92it/s]", None),
    ("torchvision", "Epoch: [0][{n:4d}/5005]\tTime  0.35 ( 0.5)\tLoss 6.9e+00 (7.0e+00)", 6.9),
    ("timm", "Train: 0 [{n:4d}/1251 (  4%)]  Loss: 6.95 (6.95)  Time: 0.351s,  729.35/s  LR: 1.0e-05", 6.95),
    ("JSON lines", '{{"step": {n}, "loss": 2.3, "time": "2025-01-01T00:00:00"}}', 2.3),
    ("step words", "INFO:__main__:Step: {n}, Loss: 1.2, LR: 0.001", 1.2),
    ("step words", "INFO:tensorflow:loss = 0.2, step = {n} (8.1 sec)", 0.2),
    (
        "MLPerf",
        ':::MLLOG {{"time_ms": 1, "key": "tracked_stats", "value": {{"train_loss": 2.5}}, "metadata": {{"step_num": {n}}}}}',
        2.5,
    ),
]  # fmt: skip


@pytest.mark.story("PRG-07")
@pytest.mark.parametrize(("name", "template", "loss"), FORMATS, ids=[f"{n}-{f[0]}" for n, f in enumerate(FORMATS)])
def test_a_format_is_read_and_named(name: str, template: str, loss: float | None) -> None:
    reader = ProgressReader()
    steps = [
        reader.progress.step
        for n in range(10, 401, 10)
        if reader.feed(template.format(n=n), AT, "log") and reader.feed("some prose: connected to 10.0.0.1:29500", AT, "log") is False
    ]  # fmt: skip
    assert steps == list(range(10, 401, 10))
    assert (reader.progress.loss, reader.format) == (loss, name)
    assert reader.confidence > 0.8


@pytest.mark.story("PRG-09")
@pytest.mark.parametrize(
    "template",
    [
        "Epoch: [{epoch}][{n:4d}/120]\tLoss 6.9",
        "Train Epoch: {epoch} [{n}/120 (1%)]\tLoss: 2.3",
        "[epoch={epoch}][batch={n}/120]:",
        "Epoch [{epoch}/10], Step [{n}/120], Loss: 0.1234",
        "| epoch {epoch} | {n}/ 120 batches | loss 8.14",
        "Epoch {epoch}:  41%|####1     | {n}/120 [02:11<03:08,  1.57it/s, v_num=7]",
    ],
)
def test_epochs_are_added_up_also_where_the_last_lines_are_not_printed(template: str) -> None:
    reader = ProgressReader()
    steps = []
    for epoch in range(3):
        for n in (1, 50, 100, 119 if "%|" in template else 100):
            if reader.feed(template.format(epoch=epoch, n=n), AT, "log"):
                steps.append(reader.progress.step)
    assert steps == sorted(steps)
    assert steps[-1] in (340, 359)


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("Compiling model with torch.compile...", "compile"),
        ("[titan] 2025-01-01 10:00:00,123 - root - INFO - Saving the checkpoint (or staging if async is enabled).", "checkpoint"),
        ("Validation DataLoader 0:  50%|#####     | 5/10 [00:01<00:01,  4.0it/s]", "eval"),
        ("Epoch(val)  [1][  50/ 625]    eta: 0:00:20  time: 0.03", "eval"),
        ("Test: [  10/196]\tTime  0.35\tLoss 1.2", "eval"),
        ("val step 10 loss=2.3", "eval"),
        ("eval iter 10: loss 2.1", "eval"),
        ("Training completed.", "finish"),
    ],
)  # fmt: skip
def test_phases_are_no_steps(line: str, phase: str) -> None:
    seen = read_line(line)
    assert (seen.step, seen.phase) == (None, phase)


@pytest.mark.parametrize(
    "line",
    [
        "2026-01-01 12:00:00 listening on port 29500",
        "trainer.py:120 something",
        "12/31/2025 shift loss of power",
        "took 12/500 ms",
        "Downloading model: 12% completed",
        "GPU 3/8 ready",
        "epoch time 12.3 s",
        "world_size 8 rank 3/8 loss scale 1.0",
    ],
)
def test_what_merely_looks_like_a_step(line: str) -> None:
    assert read_line(line).step is None


def test_epochs_and_percents_count_only_where_nothing_better_does() -> None:
    alone = ProgressReader.rebuilt([("log", f"Epoch {n}/10 loss=0.{n}") for n in range(1, 8)], AT)
    assert alone.progress.step == 7
    beside = ProgressReader.rebuilt(
        [("log", line) for n in range(1, 8) for line in (*(f"step={n * 100 + k} loss=1" for k in range(9)), f"Epoch {n} loss 0.4")],
        AT,
    )  # fmt: skip
    assert beside.progress.step == 708


def test_an_unreadable_log_is_called_log_growth() -> None:
    reader = ProgressReader.rebuilt([("log", f"working hard on part {n}") for n in range(300)], AT)
    assert (reader.format, reader.confidence, reader.progress.step) == ("log growth", 0.0, None)


def test_speed_and_learning_rate_are_read() -> None:
    reader = ProgressReader.rebuilt(
        [("log", FORMATS[0][1].format(n=5)), ("log", "step 6 | loss 2 | lr 3e-4 | 149,123 tok/s")], AT
    )
    progress = reader.progress
    assert (progress.lr, progress.throughput, progress.throughput_unit) == (3e-4, 149_123.0, "tok/s")


def test_the_format_survives_a_restart_of_the_watch() -> None:
    reader = ProgressReader.rebuilt([("log", FORMATS[0][1].format(n=n)) for n in range(40)], AT)
    again = ProgressReader.from_state(reader.to_state())
    assert (again.format, again.confidence) == (reader.format, reader.confidence)
