"""Counters in brackets and epochs: the many ways to print "batch 50 of 7,330 in epoch 2".

Feeds ``steplines``, for lines in which it found no word for a step. Examples, by where they come from:

- MMEngine ``Epoch(train) [1][  50/7330]``, ``Iter(train) [  50/90000]``; MMCV ``Epoch [1][50/7330]``
- Composer ``[epoch=1][batch=10/625]:``
- fairseq ``epoch 001:    100 / 1500 loss=12.2``
- torchvision, timm and PyTorch's examples ``Epoch: [0][  10/5005]``, ``Train: 0 [  50/1251 (  4%)]``,
  ``Train Epoch: 1 [640/60000 (1%)]``, ``| epoch   1 |   200/ 2928 batches |``
- tutorials ``Epoch [2/10], Step [100/600]``, ``12/500 loss=0.4``, ``Epoch 3/10 loss=0.4``, ``Progress: 12.5%``
- MindFormers ``Epoch:[  1/  2], step:[  100/ 1563]``, LLM Foundry ``[batch=10/4800]:``, DINO ``Training  [  10/1250]``,
  ESPnet ``1epoch:train:1-100batch:``, ``epoch 3 batch 10``, ``batch 10/500``, ``it 10/500``
- PyTorch's tutorials ``loss: 2.30  [   64/60000]``, ``[1,  2000] loss: 2.16``, ``batch 1000 loss: 0.9``
- boosted trees ``[10]<tab>train-rmse:0.12``, CLU ``logging_writer.py:48] [10] loss=2.3``, ``total_timesteps | 2048 |``

Test, validation and evaluation in the same form count nothing.
"""

from __future__ import annotations

import re
from typing import NamedTuple

EPOCHS, PERCENT = "epochs", "percent"  # weak counters: they count only where nothing better does


class Counted(NamedTuple):
    """What a line counts. ``restarts``: the counter begins anew with each ``epoch``."""

    step: int
    total: int | None = None
    epoch: int | None = None
    restarts: bool = True
    counter: str | None = None
    evaluation: bool = False


_N = r"(?P<step>\d{1,9})\s*/\s*(?P<total>\d{1,9})"
_EPOCH = r"(?P<epoch>\d{1,5})(?!\d)"
_EVAL = re.compile(
    r"(?i)\b(?:Epoch|Iter)\((?:val|test)\)|^\W*(?:test|val|valid|validation|eval|evaluation)\b\s*:?\s*\["
    r"|\[eval batch=|epoch:valid:"
)
_ITERATIONS = re.compile(rf"(?i)\bIter\(train\)\s+\[\s*{_N}\]")
_WORD = r"(?:(?:step|batch|iter\w*)\s*:?\s*)?"
_OF_EPOCH = (
    re.compile(rf"(?i)\bEpoch(?:\(train\))?\s*:?\s*\[\s*{_EPOCH}(?:\s*/\s*\d+)?\],?\s*{_WORD}\[\s*{_N}\b"),
    re.compile(rf"(?i)\[epoch={_EPOCH}\]\s*\[batch={_N}\]"),
    re.compile(rf"(?i)\b(?:train(?:ing)?:?\s+)?epoch\s*:?\s*{_EPOCH}(?:/\d+)?\s*[:,|\-]?\s*{_WORD}[\[(]?\s*{_N}\b"),
    re.compile(rf"(?i)\bTrain(?:ing)?:?\s*{_EPOCH}\s*\[\s*{_N}\b"),
)
_OF_TRAIN = _OF_EPOCH[-1:]
_PAIR = r"(\d{1,9})\s*/\s*(\d{1,9})"
_BATCHES = re.compile(rf"^\W*\[batch={_PAIR}\]|\btraining:?\s+\[\s*{_PAIR}\]\s", re.IGNORECASE)
_UNBOUNDED = (
    re.compile(rf"(?<!\d){_EPOCH}epoch:train:\d+-(?P<step>\d{{1,9}})batch"),
    re.compile(rf"(?i)\bepoch\s*[:=#]?\s*{_EPOCH}\W+batch\s*[:=#]?\s*(?P<step>\d{{1,9}})\b(?!\s*/)"),
)
_ROUNDS = (
    re.compile(r"^\[(?P<step>\d{1,9})\]\s+(?:train|learn|valid|eval|test)[\w' -]*[:-]"),
    re.compile(r"^(?P<step>\d{1,9}):\s+learn: "),
    re.compile(r"logging_writer\.py:\d+\] \[(?P<step>\d{1,9})\] (?!(?:eval|val|test))\w"),
    re.compile(r"^\|\s+(?:time/\s*)?total_timesteps\s+\|\s+(?P<step>\d{1,12})\s+\|"),
)
_BATCH = re.compile(rf"(?i)\b(?:batch|it)\s*[:#]?\s*\[?{_N}\b")
_WITH_LOSS = (  # PyTorch's tutorials: "loss: 2.30  [   64/60000]", "[1,  2000] loss: 2.16", "  batch 1000 loss: 0.9"
    re.compile(rf"(?i)\bloss: \S+\s+\[\s*{_N}\]\s*$"),
    re.compile(rf"(?i)^\[{_EPOCH},\s*(?P<step>\d{{1,9}})\]\s+(?:train\w* )?loss\b"),
    re.compile(r"(?i)^\W*(?:mini-?)?batch\s*[:#]?\s*(?P<step>\d{1,9})\b(?![/.])"),
)
_BARE = re.compile(rf"^\W*(?:train(?:ing)?\W+)?{_N}\b(?![/.-])")
_EPOCH_ALONE = re.compile(
    rf"(?i)^\W*(?:[\d:,.\-TZ ]+\W+)?(?:(?:info|train\w*)\W+)?epoch\s*[:=#]?\s*{_EPOCH}"
    r"(?:\s*/\s*(?P<total>\d{1,5}))?\b(?!\.\d)"
)
_PERCENT = re.compile(
    r"(?i)\bprogress\W{1,4}(?P<a>\d{1,3}(?:\.\d+)?)\s?%|\b(?P<b>\d{1,3}(?:\.\d+)?)\s?% (?:completed?|done)\b"
)
_TRAINING_BAR = re.compile(r"(?i)^\W*train\w*\W[^\[]{0,40}\[[#=>. -]{4,}\]\s+(?P<a>\d{1,3})(?P<b>)%")
_SETUP = re.compile(r"(?i)download|load(?:ing|ed)|token|upload|extract|compil|writ|sav(?:e|ing)|index|cach|prepar")


def read_counted(line: str, has_metric: bool) -> Counted | None:
    """Return what the line counts.

    :param has_metric: a loss stands beside it: only then is a bare number, an epoch or a percentage believed.
    """
    low = line.lower()
    if "/" not in line and "%" not in line and "poch" not in low:
        return (_with_loss(line) if has_metric and ("batch" in low or line[:1] == "[") else None) or _round(line)
    # A look for a word costs a twentieth of a search, and few lines have any of these.
    epoch, train = "epoch" in low, "train" in low
    if ("val" in low or "test" in low) and _EVAL.search(line):
        return Counted(0, evaluation=True)
    if train and (found := _ITERATIONS.search(line)) is not None:
        return Counted(int(found["step"]), int(found["total"]), restarts=False)
    for pattern in _OF_EPOCH if epoch else _OF_TRAIN if train else ():
        if (found := pattern.search(line)) is not None:
            return _fraction(found, int(found["epoch"]))
    if ("[batch=" in low or train) and (found := _BATCHES.search(line)) is not None:
        step, total = next((found[n], found[n + 1]) for n in (1, 3) if found[n])
        return Counted(int(step), int(total), restarts=False)
    for pattern in _UNBOUNDED if epoch else ():
        if (found := pattern.search(line)) is not None:
            return Counted(int(found["step"]), epoch=int(found["epoch"]))
    if (found := _TRAINING_BAR.match(line) if "%" in line else None) is not None:
        return _percent(found)
    if not has_metric or _SETUP.search(line):
        return _round(line)
    if (found := _BATCH.search(line)) is not None:
        return _fraction(found, None)
    if (found := _BARE.match(line)) is not None:
        return _fraction(found, None)
    if (counted := _with_loss(line)) is not None:
        return counted
    if (found := _PERCENT.search(line)) is not None:
        return _percent(found)
    if (found := _EPOCH_ALONE.match(line)) is not None:
        total = found["total"]
        return Counted(int(found["epoch"]), int(total) if total else None, restarts=False, counter=EPOCHS)
    return None


def _with_loss(line: str) -> Counted | None:
    found = next((match for pattern in _WITH_LOSS if (match := pattern.search(line)) is not None), None)
    if found is None:
        return None
    groups = found.groupdict()
    total, epoch = groups.get("total"), groups.get("epoch")
    return Counted(int(found["step"]), int(total) if total else None, int(epoch) if epoch else None)


def _percent(found: re.Match[str]) -> Counted | None:
    percent = float(found["a"] or found["b"])
    return Counted(round(10 * percent), 1_000, restarts=False, counter=PERCENT) if percent <= 100 else None


def _round(line: str) -> Counted | None:
    if line[:1] not in "[|I0123456789":
        return None
    found = next((match for pattern in _ROUNDS if (match := pattern.search(line)) is not None), None)
    return Counted(int(found["step"]), restarts=False) if found is not None else None


def _fraction(found: re.Match[str], epoch: int | None) -> Counted | None:
    step, total = int(found["step"]), int(found["total"])
    return Counted(step, total, epoch) if 0 <= step <= total and total > 1 else None
