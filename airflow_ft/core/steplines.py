"""What one line of training output says: a step, a loss, a phase, a checkpoint.

Feeds ``progress``, which puts the sightings of many lines together; this module has no memory. The formats, in the
order in which they are tried:

- our own line ``ft-progress {json}`` (``agent.report``), and JSON or Python dictionaries with a step or a loss;
- lines about checkpoints: saved, being saved, loaded, none found;
- bars of tqdm and Keras (training bars: a bar with another description than training is none);
- ``step 12/500``, ``step=12``, ``iteration 12/ 500 |``, ``global_step 88_000``, ``iter: 167,900``, ``(372 / 7,801)``.

A number is a step only if its word stands at the beginning of the line (after stamps, levels and brackets), is written
with ``=``, or has a metric beside it. So prose ("saving every 1000 steps"), settings ("max_steps=500000"), step names
of a scheduler and error messages are none. Agent lines (``ft-agent …``) say nothing here.
"""

from __future__ import annotations

import itertools
import re

from airflow_ft.core.dictlines import LONGEST_PATH, from_mapping, parse_mapping
from airflow_ft.core.epochlines import read_counted
from airflow_ft.core.mllog import MARK, read_mllog
from airflow_ft.core.sightings import LINES, NOTHING, Sighting
from airflow_ft.core.speedlines import read_lr, read_throughput

_NUM = r"(?:\d{1,3}(?:[,_]\d{3})+|\d+(?:\.\d+(?=[kKM](?![A-Za-z])))?)(?:[kKM](?![A-Za-z]))?"
_END = r"(?![\w%]|\.\d)"
_STEP_WORD = r"(?:(?:global|train|training|optimizer|trainer/global)[_ /-]?)?(?:steps?|iter(?:ation)?s?|updates?)"
_STEP = re.compile(
    rf"(?i)(?<![\w./-])(?<!val )(?<!eval )(?<!valid )(?<!validation )(?<!test )"
    rf"(?:epoch=\d+/\w+=\d+/)?(?P<word>{_STEP_WORD})\s?(?P<sep>[:=#]\s*|\s+#?\s*|\[\s*)(?P<step>{_NUM}){_END}"
    rf"(?:\s*(?:/|of)\s*(?P<total>{_NUM}|∞){_END})?"
)
_COMPLETE = re.compile(rf"%\s*(?:complete\s*)?\(\s*(?P<step>{_NUM})\s*(?:/|of)\s*(?P<total>{_NUM})\s*\)")
_BAR = re.compile(
    rf"(?P<name>[^|\r]*?)\s*\d{{1,3}}(?:\.\d+)?%\|[^|]*\|\s*(?P<step>{_NUM})/(?P<total>{_NUM})\s*\[(?P<rest>.*)"
)
_ENDLESS_BAR = re.compile(rf"(?:^|[:\s])(?P<step>{_NUM})it \[\d\d:\d\d")
_LINE_BAR = re.compile(
    rf"(?P<name>.*?)\s*(?:\d{{1,3}}%)?\s+[━╸╺─╼╾]{{3,}}\s*(?:\d{{1,3}}%\s*)?(?P<step>{_NUM})/(?P<total>{_NUM})\s"
)
_ALIVE_BAR = re.compile(
    rf"(?P<name>[^|\r]*)\|[^|]*\| ?▁?[^|\d]*(?P<step>{_NUM})/(?P<total>{_NUM}) \[\d{{1,3}}%\] (?:in|\() ?"
)
_NOTEBOOK_BAR = re.compile(rf"\s*\[\s*(?P<step>{_NUM})/(?P<total>{_NUM}) [\d:]{{4,}} < [\d:?]+")
_PROGRESS_ON = re.compile(r"Progress on:(?P<name>\w+) (?P<step>\d+(?:\.\d+)?k?)it/(?P<total>\d+(?:\.\d+)?k?)it ")
_KERAS_BAR = re.compile(rf"\s*(?P<step>{_NUM})/(?P<total>{_NUM})\s+(?:\[[=>.]*\]|[━╸ ]*\d*s?)\s.*(?:loss|ETA|/step)")
_LOSS = re.compile(
    r"(?i)(?<![\w/])(?<!val )(?<!eval )(?<!valid )(?<!validation )(?<!test )(?<!best )"
    r"(?:(?:train(?:ing)?|lm|total|avg|mean|reduced_train|running)[_ /-]?)?loss(?:/train/total)?['\"]?\s*[:=]?\s*\(?"
    r"(?P<loss>[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+|nan|inf(?:inity)?))(?![\w])"
)
_METRIC = re.compile(
    r"(?i)(?<![\w])(?:loss|lr|learning[_ ]rate|grad[_ ]norm|epoch|ep|tps|mfu|tok(?:en)?s?(?:/s|_per_s\w*)?|samples"
    r"|(?:step_?|iter_?)?time|dt|elapsed|eta|acc(?:uracy)?|ppl|it/s|s/it|throughput|skipped|memory|mem)\s*[:=(/ ]"
)
_LEAD = re.compile(
    r"(?i)(?:\[[^\]]*\]|\([^)]*\)|[\W\d_]|\b(?:info|debug|warn(?:ing)?|train(?:er|ing)?|main|root|completed|finished|[TZ])\b)*"
)
_SETTING = re.compile(r"(?:Namespace|Config|Args|Arguments|LR|Scheduler)\(")
_STAMP = re.compile(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?(?: |$)")
_COUNTS_OTHERS = re.compile(  # "Total optimization steps = 1,250", "warmup steps: 2000"
    r"(?i)\b(?:total|optimi[sz]ation|accumulation|warm-?up|max(?:imum)?|sav(?:e|ing)|logging|num(?:ber)?(?: of)?"
    r"|inference|diffusion|calibration|decay|every|per)[ _-]$"
)
_PROSE_AFTER = re.compile(r"\s*(?:of(?! epoch \d)|for|in)\s+[a-z]")
_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b|^Traceback|^\s+File \"|Watchdog caught|slurmstepd: error")
_AGENT = re.compile(r"ft-agent [\w-]+ \{")
_REPORT = re.compile(r"ft-progress (\{.*\})")

_OTHER_BARS = re.compile(
    r"(?i)download|load|token|map|filter|fetch|sav(?:e|ing)|writ|generat|resolv|extract|process|pack|convert|cast|copy"
    r"|upload|shard|build|compil|quantiz|cach|captur|checksum|index|split|read|import|warm|skip|sampling|rollout"
)
_EVAL_BARS = re.compile(
    r"(?i)eval|valid|\bval\b|test|predict|sanity|inference|(?-i:\bmAP)|loglikelihood|^ *Class +Images"
)
_EPOCH_BAR = re.compile(r"(?i)^\W*epochs?\W*$")

_EVAL_KIND = r"(?:evaluat\w*|validat\w*|eval|valid|val|test)"
_EVAL = re.compile(  # at the beginning of a line, behind stamps and levels
    r"(?i)\*+ ?running (?:evaluation|prediction)|(?:start(?:ing)? |running |begin )?(?:evaluat|validat)"
    rf"|{_EVAL_KIND}\b\s*(?:[:|\[(-]|step|iter|batch|epoch|metrics|results?\b|set\b|\d)"
)
_EVAL_INSIDE = re.compile(
    rf"(?i)\[{_EVAL_KIND}\]|[\]|>)] {_EVAL_KIND}(?: epoch)?\s*:?\s+\[\s*\d|\| {_EVAL_KIND} \||\beval metrics after"
    r"|\binference done \d|logging_writer\.py:\d+\] \[\d+\] (?:eval|val|test)"
)
_COMPILE = re.compile(
    r"(?i)^\W*(?:\S+ - )?(?:start(?:ed|ing)? |begin )?"
    r"(?:(?:re-?)?compil(?:ing|ation of) |captur(?:ing|e of) cuda ?graph)"
)
_FINISH = re.compile(
    r"(?i)\btraining (?:is )?(?:completed?|finished|done)\b|\bfinished training\b(?! (?:it|step|batch|epoch))"
    r"|['\"]train_runtime['\"]|\.fit` stopped: "
)
_CHECKPOINT = re.compile(
    r"(?i)\b(?:check[- ]?points?|ckpts?)\b|checkpoint-\d|\.(?:ckpt|pt|pth|distcp|safetensors)\b"
    r"|iter_\d{4}|global_?step\d|step[-_]\d"
)
_SAVED = re.compile(r"(?i)\b(?:saved|wrote|written|stored|finished saving|done saving)\b")
_SAVING = re.compile(r"(?i)\b(?:saving|writing|storing|save)\b")
_LOADED = re.compile(r"(?i)\b(?:loaded|resumed|restored|resuming|continuing|restoring|recovered)\b")
_LOADING = re.compile(r"(?i)\bloading\b")
_FROM_STEP = re.compile(r"(?i)\b(?:from|at|to)\b.*\b(?:step|iter(?:ation)?|check[- ]?point|ckpt)\b|training state")
_SCRATCH = re.compile(
    r"(?i)\b(?:from scratch|from the beginning|fresh (?:weights|start)|starting (?:a )?fresh|random(?:ly)? init\w*"
    r"|start from random|no (?:existing |previous |usable )?(?:check[- ]?points?|ckpts?)\b(?! callback)"
    r"|(?:check[- ]?point|tracker file|ckpt)\b.*\bnot found|nothing to resume)"
)
_HABIT = re.compile(r"(?i)\b(?:every|interval|each|will be saved|strategy|keep(?:ing)?_?)\b")
# A path, as people print one: quoted, in brackets, or a word that has a folder in it. Never a ratio or a unit.
_QUOTED_PATH = re.compile(r"""(['"`])([^'"`]*/[^'"`]+)\1|\(((?:~|\.{1,2})?/[^()]+|\w+://[^()]+)\)""")
_PATH = re.compile(r"""(?<![\w/.~:-])((?:(?:~|\.{1,2})?/|\w+://|[\w.+=-]*[A-Za-z_][\w.+=-]*/)[^\s'"`,;()\[\]<>|]+)""")
_MARKS = (
    re.compile(rf"(?i)global_?step[-_:= ]*0*(?P<n>{_NUM}){_END}"),
    re.compile(rf"(?i)(?<![A-Za-z])step[-_:= ]*#?0*(?P<n>{_NUM})(?![\d%])"),
    re.compile(rf"(?i)(?<![A-Za-z])iter(?:ation)?[-_:= ]*0*(?P<n>{_NUM})(?![\d%])"),
    re.compile(rf"(?i)(?:check[- ]?point|ckpt|model)[-_:= ]*0*(?P<n>{_NUM})(?![\w%])(?!\.\d|\s*/)"),
)


def read_line(line: str) -> Sighting:
    """Return what the line says. The line is text without terminal escapes, as ``loglines`` makes it."""
    if not line or ("ft-agent " in line and _AGENT.search(line)):
        return NOTHING
    if line[:2] == "20" and (stamp := _STAMP.match(line)) is not None:
        line = line[stamp.end() :]  # the platform's, or a logger's: what follows begins the line
    if MARK in line and (entry := read_mllog(line)) is not None:
        counter = entry.counter or (LINES if entry.counts else None)
        return Sighting(step=entry.step, loss=entry.loss, phase=entry.phase, counter=counter)
    report = _REPORT.search(line) if "ft-progress" in line else None
    if report:
        return from_mapping(parse_mapping(report[1])) or NOTHING
    if "{" in line and (found := _with_mapping(line)) is not None:
        return found
    if (bar := _read_bar(line)) is not None:
        return bar
    if _has(line, _ERROR_HINTS) and _ERROR.search(line):
        return NOTHING
    low = line.lower()
    if _has(low, _CHECKPOINT_HINTS) and (about := _read_checkpoint(line)) is not None:
        return about
    return _read_words(line, low)


# A search costs microseconds, a look for a word in a line a twentieth of one: most lines need few of the patterns.
_ERROR_HINTS = ("Error", "Exception", "Traceback", 'File "', "Watchdog caught", "slurmstepd")
_SAVE_HINTS = ("sav", "wr", "stor", "load", "resum", "continu", "recover")
_SCRATCH_HINTS = ("scratch", "beginning", "fresh", "random", "no ", "not found", "nothing")
_CHECKPOINT_HINTS: tuple[str, ...] = _SAVE_HINTS + _SCRATCH_HINTS
_EVAL_HINTS = ("val", "predict", "test", "inference done")


def _has(text: str, words: tuple[str, ...]) -> bool:
    for word in words:  # noqa: SIM110 - any() with a generator takes three times as long
        if word in text:
            return True
    return False


def read_number(text: str) -> int:
    """Return the integer that people write as ``1,240``, ``88_000`` or ``4k``."""
    scale = {"k": 1_000, "K": 1_000, "M": 1_000_000}.get(text[-1:], 1)
    digits = text.rstrip("kKM").replace(",", "").replace("_", "")[:18]
    return round(float(digits) * scale) if "." in digits else int(digits) * scale


# --- bars, checkpoints, words ------------------------------------------------------------------------------------


def _with_mapping(line: str) -> Sighting | None:
    """Read the dictionary of a line; who prints the step before it, and evaluations that say so there, are heard."""
    at = line.index("{")
    seen = from_mapping(parse_mapping(line[at:].strip()))
    if seen is None or seen.step is not None or at < 4:
        return seen
    before = line[:at]
    if _is_evaluation(before, before.lower()):
        return Sighting(phase="eval")
    if seen.loss is not None and (step := _word_step(f"{before}loss=", f"{before.lower()}loss=")) is not None:
        return seen._replace(step=step[0], total=step[1], phase="train", counter=None)
    return seen


def _read_bar(line: str) -> Sighting | None:
    bar = _BAR.search(line) if "%|" in line else None
    if bar is None and "/" in line:
        bar = _KERAS_BAR.match(line)
        if bar is None and ("━" in line or "──" in line):
            bar = _LINE_BAR.match(line)
        if bar is None and "%] " in line:
            bar = _ALIVE_BAR.match(line)
        if bar is None and " < " in line:
            bar = _NOTEBOOK_BAR.match(line)
        if bar is None and "Progress on:" in line:
            bar = _PROGRESS_ON.search(line)
    if bar is None:
        endless = _ENDLESS_BAR.search(line) if "it [" in line else None
        if endless is None or _OTHER_BARS.search(line[: endless.start()]):
            return None if endless is None else NOTHING
        return Sighting(step=read_number(endless["step"]), loss=_loss(line), phase="train")
    named = bar.groupdict().get("name") or ""
    if _EVAL_BARS.search(named):
        return Sighting(phase="eval")
    if _OTHER_BARS.search(named) or _EPOCH_BAR.match(named) or re.search(r"\d ?(?:examples|files?|[kMG]?i?B)/s", line):
        return NOTHING
    step, total = read_number(bar["step"]), read_number(bar["total"])
    seen = Sighting(step=step, total=total, loss=_loss(line), phase="train", restarts=True)
    return _with_speed(seen, line)


def _read_checkpoint(line: str) -> Sighting | None:
    if _SCRATCH.search(line):
        return Sighting(from_scratch=True, text=line[:300])
    about = _CHECKPOINT.search(line) is not None
    if about and _HABIT.search(line) and _HABIT.search(_PATH.sub(" ", _QUOTED_PATH.sub(" ", line))):
        return NOTHING  # it tells when checkpoints are saved. A folder may have any name: /runs/each-size/step-60
    number = next((read_number(mark["n"]) for pattern in _MARKS if (mark := pattern.search(line))), None)
    if about and _SAVED.search(line):
        return Sighting(saved=number, phase="train", path=_read_path(line))
    if about and _SAVING.search(line):
        return Sighting(saving=number, phase="checkpoint", path=_read_path(line))
    if _LOADED.search(line) and (about or _FROM_STEP.search(line)):
        return Sighting(loaded=number, text=line[:300]) if number is not None else NOTHING
    if about and _LOADING.search(line):
        return Sighting(loading=number, text=line[:300])
    return None


def _read_path(line: str) -> str | None:
    """Return the path in a line about a checkpoint: the last one that names a checkpoint, else the last one."""
    found: list[str] = [match[2] or match[3] for match in _QUOTED_PATH.finditer(line)]
    if not found:
        found = [match[1].rstrip(".:!?") for match in _PATH.finditer(line)]
    found = [path for path in found if len(path) <= LONGEST_PATH and not re.fullmatch(r"\w+/s(?:ec)?", path)]
    about = [path for path in found if _CHECKPOINT.search(path) or any(mark.search(path) for mark in _MARKS)]
    return (about or found)[-1] if found else None


def _read_words(line: str, low: str) -> Sighting:
    if _is_evaluation(line, low):
        return Sighting(phase="eval")
    if ("train" in low or "stopped" in low) and _FINISH.search(line):
        return Sighting(phase="finish")
    if ("compil" in low or "captur" in low) and _COMPILE.search(line):
        return Sighting(phase="compile")
    loss = _loss(line)
    if (step := _word_step(line, low)) is not None:
        return _with_speed(Sighting(step=step[0], total=step[1], loss=loss, phase="train"), line)
    counted = read_counted(line, loss is not None)
    if counted is None:
        return Sighting(loss=loss, lr=read_lr(line)) if loss is not None else NOTHING
    if counted.evaluation:
        return Sighting(phase="eval")
    seen = Sighting(
        step=counted.step,
        total=counted.total,
        loss=loss,
        phase="train",
        restarts=counted.restarts,
        epoch=counted.epoch,
        counter=counted.counter,
    )
    return _with_speed(seen, line)


def _is_evaluation(line: str, low: str) -> bool:
    if not _has(low, _EVAL_HINTS):
        return False
    lead = _LEAD.match(line)
    return _EVAL.match(line, lead.end() if lead else 0) is not None or _EVAL_INSIDE.search(line) is not None


def _with_speed(seen: Sighting, line: str) -> Sighting:
    throughput, unit = read_throughput(line)
    return seen._replace(lr=read_lr(line), throughput=throughput, throughput_unit=unit)


def _first_word(line: str, low: str) -> int:
    """Return where the search for a step's word has to begin: it goes through each character otherwise."""
    places = [at for word in ("step", "iter", "update") if (at := low.find(word)) >= 0]
    return max(0, min(places) - 20) if places else len(line)


def _word_step(line: str, low: str) -> tuple[int, int | None] | None:
    completed = _COMPLETE.finditer(line) if "% " in line else ()
    for found in itertools.chain(_STEP.finditer(line, _first_word(line, low)), completed):
        if not _is_step(line, found) or ("[" in found[0] and "poch" in line[: found.start()]):
            continue
        total = found["total"]
        return read_number(found["step"]), read_number(total) if total and total != "∞" else None
    return None


def _is_step(line: str, found: re.Match[str]) -> bool:
    if _PROSE_AFTER.match(line, found.end()) or "***" in line or ("(" in line and _SETTING.search(line)):
        return False
    if _COUNTS_OTHERS.search(line, max(0, found.start() - 20), found.start()):
        return False
    if "sep" not in found.re.groupindex:  # "% complete (372 / 7,801)"
        return _OTHER_BARS.search(line, 0, found.start()) is None
    leads = _LEAD.match(line)
    at_start = leads is not None and leads.end() >= found.start()
    return at_start or "=" in found["sep"] or _METRIC.search(line) is not None


def _loss(line: str) -> float | None:
    found = _LOSS.search(line) if "loss" in line or "LOSS" in line or "Loss" in line else None
    return float(found["loss"]) if found else None
