"""Which format a log is in, and how sure that is: by name, for people.

Fed by ``progress`` with the lines in which it saw a step. The names have no part in the reading itself: ``steplines``
reads them all. Few lines are looked at: the first ones, then each ``RARELY``-th.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

ALWAYS, RARELY = 32, 16
LOG_GROWTH = "log growth"
CERTAIN = frozenset({"MLPerf", "airflow-ft"})  # lines of these can't be anything else
SURE_LINES = 10  # with a step and nothing else: numbered parts of a set-up are fewer
_MARKS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("MLPerf", r":::MLL"),
        ("airflow-ft", r"ft-progress \{|\"ft\":"),
        ("GPT-NeoX", r"samples/sec: [\d.]+ \| iteration\s+\d+/"),
        ("nanotron", r"\biteration: \d+ / \d+ \| consumed_tokens:"),
        ("Megatron-LM", r"\biteration\s+\d+/\s*\d+ \|.*(?:consumed samples|elapsed time per iteration)"),
        ("NeMo", r"reduced_train_loss|train_step_timing"),
        ("DeepSpeed", r"log_dist\] .*step=|micro_step=\d+/global_step=|RunningAvgSamplesPerSec"),
        ("torchtitan", r"\bstep:\s+[\d,]+\s+loss:.*(?:grad_norm:|memory:|tps:|mfu:)"),
        ("MaxText", r"completed step: \d+, seconds:"),
        ("modded-nanoGPT", r"step:\d+/\d+ .*train_time:"),
        ("nanoGPT", r"\biter \d+: loss [\d.]+, time [\d.]+ms"),
        ("fairseq", r"\btrain(?:_inner)? \| .*(?:num_updates|gnorm)"),
        ("MMEngine", r"(?:Epoch|Iter)(?:\(train\))?\s+\[\s*\d.*\beta:"),
        ("Composer", r"\[(?:epoch=\d+\]\[)?batch=|ba/s"),
        ("OLMo", r"\bolmo\w*[.:].*\[step=\d+/"),
        ("verl", r"\bstep:\d+ - \w+[-/]|Training Progress: +\d+%"),
        ("OpenRLHF", r"Train step of epoch \d+:"),
        ("torchtune", r"^\d+\|\d+\|Loss: |tokens_per_second_per_gpu:"),
        ("levanter", r"Progress on:\w+ "),
        ("LitGPT", r"\biter \d+ step \d+[ :]"),
        ("MindFormers", r"Epoch:\[ *\d+/ *\d+\], step:\["),
        ("MindSpore", r"\bepoch: \d+ step: \d+, loss is"),
        ("PaddleNLP", r"\bglobal[_ ]step:? \d+, (?:epoch|interval_)"),
        ("PaddlePaddle", r"\bpp\w+(?:\.\w+)? INFO: "),
        ("Ultralytics", r"(?:^|Z)\s*\d+/\d+\s+[\d.]+G\s.*:\s+\d+%"),
        ("detectron2", r"d2\.utils\.events|\bmax_mem: \d+M"),
        ("ESPnet", r"\d+epoch:train:\d+-\d+batch"),
        ("DLLogger", r"^DLLL? "),
        ("CLU", r"logging_writer\.py:\d+\] \[\d+\]"),
        ("LLaMA-Factory", r"\"current_steps\": "),
        ("diffusers", r"^Steps: +\d+%"),
        ("boosted trees", r"^\[?\d+[\]:]\s+(?:train|learn)"),
        ("OpenCLIP", r"Train Epoch: \d+ \[.*Logit Scale"),
        ("Lightning", r"(?i)epoch \d+:.*\|.*v_num="),
        ("Hugging Face Trainer", r"\{'loss': .*'epoch': "),
        ("Keras", r"\d+/\d+ +(?:\[[=>.]*\]|[━╸])"),
        ("tqdm", r"%\|.*\| \d+/\d+ \[|\dit \["),
        ("timm", r"\bTrain: \d+ \[ *\d+/\d+"),
        ("torchvision", r"Epoch: \[\d+\]\s*\[ *\d+/\d+\]"),
        ("JSON lines", r"^\s*\{\""),
        ("dictionaries", r"^\s*\{'"),
        ("step words", r"(?i)\b(?:step|iter|iteration|update)s?\b"),
        ("epochs", r"(?i)\bepoch"),
    )
)


def format_of(line: str) -> str:
    """Return the name of the format of a line in which a step was read."""
    return next((name for name, mark in _MARKS if mark.search(line)), "counters")


def dominant(counts: Mapping[str, int]) -> tuple[str | None, float]:
    """Return the format of most lines, and how sure it is: its share, less while few lines were seen."""
    if not counts:
        return None, 0.0
    name = max(counts, key=lambda key: counts[key])
    # Two formats of one framework stand side by side (a bar and dictionaries): the second best takes half of its share.
    share = counts[name] / (counts[name] + 0.5 * (sum(counts.values()) - counts[name]))
    return name, round(share * counts[name] / (counts[name] + 2), 2)
