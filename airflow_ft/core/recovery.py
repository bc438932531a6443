"""Recovery: did training really come back? Resubmitted is not recovered (DESIGN §1, mission S15).

An attempt after a fault has recovered when it *loaded the expected checkpoint and passed the step where the last one
died*. ``begin`` is called when the restart is ordered, ``follow`` with each new progress of the new run, ``ended`` when
that run is over. Fed by ``progress``, feeds the chain; pure.

A load is known from the line that says so, or from the steps themselves: a first step right behind the expected
checkpoint can have no other explanation. Steps are printed with gaps, so "right behind" means within the usual distance
of two printed steps, and a verdict that depends on that distance waits for the second step.
"""

from __future__ import annotations

from pydantic import AwareDatetime

from airflow_ft.core.progress import Progress
from airflow_ft.core.records import Record


class Recovery(Record):
    """What is known about the recovery from one fault.

    ``state`` is ``pending``, ``recovered``, ``from_scratch`` (restarted from the beginning), ``gap`` (steps were
    skipped) or ``failed`` (the run ended before it passed the old step).
    """

    state: str = "pending"
    died_at_step: int | None = None
    expected_checkpoint: int | None = None
    loaded_checkpoint: int | None = None
    first_step: int | None = None
    first_step_at: AwareDatetime | None = None
    passed_step: int | None = None
    passed_at: AwareDatetime | None = None
    loss_before: float | None = None
    loss_after: float | None = None
    text: str = ""


def begin(died_at_step: int | None, expected_checkpoint: int | None, loss_before: float | None = None) -> Recovery:
    """Begin to watch for a recovery.

    :param died_at_step: the last step that was seen; ``None``: not known; 0: it is known that there was none.
    :param expected_checkpoint: the newest whole checkpoint; ``None``: not known; 0: none, from the beginning is right.
    """
    text = "The new run has shown no step yet."
    if died_at_step is None:
        text = "It is not known at which step the last run died."
    return Recovery(
        died_at_step=died_at_step, expected_checkpoint=expected_checkpoint, loss_before=loss_before, text=text
    )


def follow(recovery: Recovery, progress: Progress) -> Recovery:
    """Return what the newest progress of the new run makes of the recovery. Anything but ``pending`` is final."""
    if recovery.state != "pending":
        return recovery
    seen = recovery.but(
        loaded_checkpoint=_loaded(recovery, progress),
        first_step=progress.first_step,
        first_step_at=progress.first_step_at,
    )
    if _began_anew(seen, progress):
        return seen.but(state="from_scratch", loss_after=progress.loss, text=_anew(seen))
    skipped = _skipped(seen, progress)
    if skipped > 0:
        text = f"It resumed with a gap: {skipped} steps before step {seen.first_step} were never trained."
        return seen.but(state="gap", loss_after=progress.loss, text=text)
    if skipped < 0:
        return seen.but(text=f"It began at step {seen.first_step}; the next step will show whether there is a gap.")
    if progress.step is None or seen.died_at_step is None:
        return seen.but(text=recovery.text if progress.step is None else _blind(progress.step))
    if progress.step <= seen.died_at_step:
        return seen.but(text=f"It is at step {progress.step} and has to pass step {seen.died_at_step}.")
    if not _loaded_as_expected(seen):
        return seen.but(text=_wrong_load(seen, progress.step))
    return seen.but(
        state="recovered",
        passed_step=progress.step,
        passed_at=progress.at,
        loss_after=progress.loss,
        text=_recovered(seen, progress.step),
    )


def ended(recovery: Recovery) -> Recovery:
    """The new run is over: what is still pending has failed."""
    if recovery.state != "pending":
        return recovery
    old = "the step where the last one died" if recovery.died_at_step is None else f"step {recovery.died_at_step}"
    return recovery.but(state="failed", text=f"The run ended before it was seen to pass {old}.")


# --- what was loaded ---------------------------------------------------------------------------------------------


def _loaded(recovery: Recovery, progress: Progress) -> int | None:
    if progress.loaded is not None:
        return progress.loaded
    expected, first = recovery.expected_checkpoint, progress.first_step
    if expected and first is not None and expected < first <= expected + _distance(progress):
        return expected  # nothing was said, but these steps have no other beginning
    return recovery.loaded_checkpoint


def _began_anew(seen: Recovery, progress: Progress) -> bool:
    if not seen.expected_checkpoint:
        return False
    if progress.from_scratch or seen.loaded_checkpoint == 0:
        return True
    first = progress.first_step
    if first is None or seen.loaded_checkpoint or first >= seen.expected_checkpoint:
        return False
    return first <= 1 or (progress.every is not None and first <= progress.every)


def _skipped(seen: Recovery, progress: Progress) -> int:
    """Return how many steps are missing behind the checkpoint; negative while that can't be known yet."""
    base = seen.loaded_checkpoint or seen.expected_checkpoint
    if not base or progress.first_step is None or progress.first_step <= base + _distance(progress):
        return 0
    return -1 if progress.every is None else progress.first_step - base - 1


def _distance(progress: Progress) -> int:
    return max(1, progress.every or 1)


def _loaded_as_expected(seen: Recovery) -> bool:
    loaded, expected = seen.loaded_checkpoint, seen.expected_checkpoint
    if expected is None:
        return bool(loaded)
    if expected == 0:
        return True
    newest = max(expected, seen.died_at_step or 0)
    return loaded is not None and expected <= loaded <= newest  # newer: its save ended after our last look


# --- sentences ---------------------------------------------------------------------------------------------------


def _anew(seen: Recovery) -> str:
    return f"It restarted from the beginning although checkpoint {seen.expected_checkpoint} was expected."


def _blind(step: int) -> str:
    return f"It is at step {step}, but it is not known at which step the last run died."


def _wrong_load(seen: Recovery, step: int) -> str:
    if seen.loaded_checkpoint is None:
        return f"It is at step {step}, but it was not seen which checkpoint was loaded."
    if seen.expected_checkpoint is None:
        return f"It passed step {seen.died_at_step} from the beginning; no checkpoint was loaded."
    return f"It loaded checkpoint {seen.loaded_checkpoint} instead of {seen.expected_checkpoint} and is at step {step}."


def _recovered(seen: Recovery, step: int) -> str:
    where = f"checkpoint {seen.loaded_checkpoint}" if seen.loaded_checkpoint else "the beginning"
    return f"It continued from {where} and passed step {seen.died_at_step} (now at step {step})."
