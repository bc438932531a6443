"""A stored chain as the tab needs it: lanes, curve, table and marks. Pure; the sentences are those of ``answers``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from airflow_ft.core.chain import Chain
from airflow_ft.core.progress import Progress
from airflow_ft.core.recovery import Recovery
from airflow_ft.core.story import duration_words, recovery_words
from airflow_ft.views import answers
from airflow_ft.views.models import (
    Burst,
    ChainView,
    FaultView,
    Gather,
    Mark,
    May,
    Passed,
    Phase,
    RunPage,
    RunView,
    Segment,
    TaskKey,
)
from airflow_ft.views.records import StoredChain
from airflow_ft.views.runs import DISRUPTION, Run, runs

MOST_RUNS = 200  # in one answer; the rest is paged: 200 are 120 kB of JSON, 15 kB compressed
MOST_MARKS = 60
SHORT = 32
TEXT = 160
BURST_FAULTS = 5
BURST_RATE = 4.0  # times the chain's own rate: a gut feeling, as in the reference picture


def chain_view(stored: StoredChain, now: datetime, *, may_judge: bool = False) -> ChainView:
    """Return the chain."""
    found, chain = runs(stored), stored.chain
    views = [_run(index, found, stored, now) for index in range(max(0, len(found) - MOST_RUNS), len(found))]
    faulty = [run for run in found if run.incident is not None]
    return ChainView(
        task=task_key(chain),
        now=now.timestamp(),
        state=stored.state,
        live=stored.live_now,
        segment=chain.segment,
        segments=_segments(found),
        text=answers.texts(stored, found, now),
        runs=tuple(views),
        total_runs=len(found),
        classes=_counted([run.fault_class for run in faulty]),
        nodes=_counted([run.fault_node for run in faulty if run.fault_class != DISRUPTION]),
        bursts=_bursts(faulty, found, now),
        marks=_marks(chain, found),
        unreadable=stored.unreadable,
        may=May(feedback=may_judge),
    )


def run_page(stored: StoredChain, now: datetime, before: int | None, limit: int) -> RunPage:
    """Return a page of the table, the newest first. ``before`` is a position in the chain's runs."""
    found = runs(stored)
    end = len(found) if before is None else max(0, min(before, len(found)))
    start = max(0, end - limit)
    items = tuple(_run(index, found, stored, now) for index in range(end - 1, start - 1, -1))
    return RunPage(total=len(found), items=items, next=start or None)


def run_id(run: Run) -> str:
    """The address of a run within its chain."""
    return f"{run.attempt.number}-{run.generation}"


def task_key(chain: Chain) -> TaskKey:
    """Which task instance a chain belongs to."""
    return TaskKey(dag_id=chain.dag_id, run_id=chain.run_id, task_id=chain.task_id, map_index=chain.map_index)


def _run(index: int, found: Sequence[Run], stored: StoredChain, now: datetime) -> RunView:
    run, before = found[index], found[index - 1] if index else None
    following = found[index + 1] if index + 1 < len(found) else None
    attempt, progress = run.attempt, run.progress
    ok, outcome = _outcome(run, stored)
    known = before is not None and before.nodes and run.nodes
    return RunView(
        id=run_id(run),
        label=run.label,
        attempt=attempt.number,
        generation=run.generation,
        segment=attempt.segment,
        try_number=attempt.try_number,
        job=attempt.name,
        how=_how(run, before),
        started=run.started.timestamp(),
        ended=run.ended.timestamp() if run.ended else None,
        live=run.live,
        phases=_phases(run, before, now),
        points=_points(progress),
        first_step=progress.first_step if progress else None,
        last_step=progress.step if progress else None,
        checkpoint=progress.checkpoint if progress else None,
        node_count=len(run.nodes),
        nodes_in=tuple(sorted(set(run.nodes) - set(before.nodes)))[:8] if known and before else (),
        nodes_out=run.attempt.excluded_nodes[:8],
        fault=_fault(run),
        done=answers.decision_words(run.incident.decision) if run.incident else "",
        passed=_passed(run, following),
        outcome=outcome,
        ok=ok,
    )


# --- lanes and curve ---------------------------------------------------------------------------------------------


def _phases(run: Run, before: Run | None, now: datetime) -> tuple[Phase, ...]:
    """The stretches of a lane, as far as the records tell them apart."""
    end = run.ended or (now if run.live else None)
    progress = run.progress
    first = progress.first_step_at if progress else None
    made: list[tuple[str, datetime, datetime]] = []
    delay = before.incident.decision.delay if before and before.incident and run.generation == 0 else 0.0
    if before and before.ended and delay:
        made.append(("wait", before.ended, min(run.started, before.ended + timedelta(seconds=delay))))
    last = (progress.at if progress and progress.step is not None else None) or first
    if end is None:
        end = last or run.started
    if first is None or last is None:
        made.append(("startup", run.started, end))
    else:
        made.append(("startup", run.started, first))
        passed = before.recovery.passed_at if before and before.recovery else None
        again = before is not None and before.incident is not None and (before.recovery is None or passed is None)
        turn = last if again else min(max(first, passed), last) if passed and passed > first else first
        stop = end if run.live else last
        made += (
            [("again", first, turn), ("train", turn, stop)] if turn < stop or not again else [("again", first, stop)]
        )
        if not run.live:
            hung = run.fault_class == "COMM_HANG"
            made.append(("silence" if hung else "end", stop, end))
    return tuple(
        Phase(kind=kind, start=start.timestamp(), end=stop.timestamp()) for kind, start, stop in made if stop > start
    )


def _points(progress: Progress | None) -> tuple[tuple[float, int], ...]:
    """The curve: the records keep the first and the newest step of a run, and nothing in between."""
    if progress is None or progress.step is None or progress.at is None:
        return ()
    first, at = progress.first_step, progress.first_step_at
    begin = ((at.timestamp(), first),) if at and first is not None and at < progress.at else ()
    return (*begin, (progress.at.timestamp(), progress.step))


def _passed(run: Run, following: Run | None) -> Passed | None:
    seen = run.recovery
    if seen is None or seen.state != "recovered" or seen.passed_at is None:
        return None
    died = run.died_at or run.started
    twice = None
    if seen.died_at_step is not None and seen.first_step is not None:
        twice = max(0, seen.died_at_step - seen.first_step + 1)
    return Passed(
        by=following.label if following else "?",
        at=seen.passed_at.timestamp(),
        step=seen.died_at_step,
        checkpoint=seen.loaded_checkpoint,
        seconds=max(0.0, (seen.passed_at - died).total_seconds()),
        twice=twice,
    )


def _how(run: Run, before: Run | None) -> str:
    if before is None:
        return ""
    if run.after is None:
        return "cleared by a person" if before.attempt.segment != run.attempt.segment else "next attempt"
    words = answers.decision_words(run.after)
    return words[0].lower() + words[1:]


def _fault(run: Run) -> FaultView | None:
    if run.incident is None:
        return None
    diagnosis, node = run.incident.diagnosis, run.fault_node
    root = diagnosis.root
    where = f"rank {root.rank} · " if root and root.rank is not None else ""
    what = diagnosis.disruption or (root.text if root and root.text else diagnosis.text)
    if run.fault_class == "COMM_HANG" and run.died_at is not None:
        what = f"silent {duration_words(run.incident.detected_at - run.died_at)}"
    return FaultView(
        fault_class=run.fault_class or "UNKNOWN",
        confidence=diagnosis.confidence,
        at=(run.died_at or run.started).timestamp(),
        node=node,
        rank=root.rank if root else None,
        short=where + (node or cut(what, SHORT)),
        text=cut(diagnosis.text, TEXT),
    )


def _outcome(run: Run, stored: StoredChain) -> tuple[bool | None, str]:
    """Whether it went well, and the words for it."""
    incident, seen = run.incident, run.recovery
    if incident is None:
        if run.live:
            return None, "running"
        outcome = run.attempt.outcome
        if outcome is None:
            return False, "ended with its task"
        return outcome.end.value == "succeeded", outcome.end.value.replace("_", " ")
    if seen is not None and seen.state == "recovered":
        return True, _recovered_in(run, seen)
    if seen is not None and seen.state != "pending":
        return False, recovery_words(seen).lstrip("✗ ").partition(".")[0]
    if not incident.decision.ends_attempt or run.attempt.number != stored.chain.attempts - 1:
        return None, "not known yet" if stored.live_now else "not seen to recover"
    return (None, "not known yet") if stored.live_now else (False, "stopped")


def _recovered_in(run: Run, seen: Recovery) -> str:
    if seen.passed_at is None:
        return "recovered"
    return f"recovered in {duration_words(seen.passed_at - (run.died_at or run.started))}"


# --- counts ------------------------------------------------------------------------------------------------------


def _counted(names: Sequence[str | None]) -> tuple[Gather, ...]:
    counts = Counter(name for name in names if name)
    return tuple(Gather(name=name, faults=count) for name, count in counts.most_common(12))


def _segments(found: Sequence[Run]) -> tuple[Segment, ...]:
    first: dict[int, Run] = {}
    for run in found:
        first.setdefault(run.attempt.segment, run)
    return tuple(
        Segment(number=number, first_attempt=run.attempt.number, at=run.started.timestamp())
        for number, run in sorted(first.items())
    )


def _bursts(faulty: Sequence[Run], found: Sequence[Run], now: datetime) -> tuple[Burst, ...]:
    """Find the densest stretch of faults, if it is much denser than the chain as a whole."""
    times = [(run.died_at or run.started).timestamp() for run in faulty]
    if len(times) < 2 * BURST_FAULTS:
        return ()
    whole = max(1.0, (found[-1].ended or now).timestamp() - found[0].started.timestamp())
    rate = len(times) / whole
    best: tuple[int, int] | None = None
    for start in range(len(times) - BURST_FAULTS + 1):
        for end in range(start + BURST_FAULTS - 1, len(times)):
            span = max(1.0, times[end] - times[start])
            dense = (end - start) / span >= BURST_RATE * rate
            if dense and (best is None or end - start > best[1] - best[0]):
                best = start, end
    if best is None:
        return ()
    within = timedelta(seconds=times[best[1]] - times[best[0]])
    text = f"{best[1] - best[0] + 1} faults in {duration_words(within)}"
    return (Burst(start=times[best[0]], end=times[best[1]], text=text),)


def _marks(chain: Chain, found: Sequence[Run]) -> tuple[Mark, ...]:
    shown = [event for event in chain.events if event.kind not in ("fault", "stopped", "succeeded")]
    if chain.created_at and not found:
        return ()
    return tuple(Mark(at=event.at.timestamp(), text=cut(event.text, TEXT)) for event in shown[-MOST_MARKS:])


def cut(text: str, most: int) -> str:
    """A text on one line, at most ``most`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
