"""``fault_tolerant_training``: the explicit form of a training, a task group of stages that a user can see and rewire.

::

    submit ─► attempt_0: watch ─► classify ─► decide ─┬► restart_in_place ─┐
                                                      ├► resubmit ─────────┼─► attempt_1: verify_recovery ─► watch ─► …
                                                      └► give_up           │
                                                                           └► …              result ─► clean_up

A watch that sees training done skips every later stage by one request, and so does the branch. ``result`` ends as the
training has ended; ``clean_up`` is a teardown that cancels what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from airflow.sdk import TaskGroup, TriggerRule

from airflow_ft.operators.settings import TrainingSettingsError, callables
from airflow_ft.operators.stages.base import Group, StageOperator
from airflow_ft.operators.stages.end import CancelTrainingOperator, TrainingResultOperator
from airflow_ft.operators.stages.faults import (
    ClassifyFaultOperator,
    FaultPolicyBranchOperator,
    GiveUpOperator,
    RestartInPlaceOperator,
)
from airflow_ft.operators.stages.submit import ResubmitOperator, SubmitTrainingOperator
from airflow_ft.operators.stages.watch import VerifyRecoveryOperator, WatchTrainingOperator

MAX_ATTEMPTS = 10  # beyond it a grid can't be read any more, and the scheduler has thousands of edges to walk
DEFAULT_ATTEMPTS = 4
OVERRIDABLE = ("preflight", "classify", "decide", "bisect")
JOIN = TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS


def fault_tolerant_training(
    *,
    job: Any,
    policy: Any = None,
    attempts: int = DEFAULT_ATTEMPTS,
    group_id: str = "training",
    stages: Mapping[str, Callable[..., Any]] | None = None,
    on_fault: Sequence[Callable[..., Any]] | Callable[..., Any] = (),
    on_attempt: Sequence[Callable[[Any], Any]] | Callable[[Any], Any] = (),
    deferrable: bool = True,
    progress_pattern: str | None = None,
    attempt_timeout: timedelta | None = None,
    **group: Any,
) -> TaskGroup:
    """Build the explicit form of a training. The group's last task, ``result``, has the training's state.

    :param job: what to train and where, as ``FaultTolerantTrainingOperator`` takes it.
    :param policy: as ``FaultTolerantTrainingOperator`` takes it. Its budget counts as well as ``attempts``.
    :param attempts: how many sub-groups are unrolled, 1 to 10. A restart in place takes one, too.
    :param stages: stages of your own, by name: ``preflight``, ``classify``, ``decide``, ``bisect``. Each is a ``@task``
        function, or any callable that is called with the attempt (``preflight``: with nothing) and returns an operator.
        ``decide`` is a ``@task.branch`` that returns one of ``attempt["choices"]``. ``preflight`` may be a
        ``PreflightOperator``: the first attempt avoids the nodes that it found bad. ``bisect``, a ``BisectOperator``,
        runs before ``resubmit`` where the policy has decided so, and ``resubmit`` goes by what it found.
    :param on_fault: tasks that run beside the decision of each fault, made like ``stages``: a ticket, a page.
    :param on_attempt: as ``FaultTolerantTrainingOperator`` takes it.
    :param deferrable: watch in the triggerer (default) instead of holding a worker slot.
    :param progress_pattern: as ``FaultTolerantTrainingOperator`` takes it.
    :param attempt_timeout: as ``FaultTolerantTrainingOperator`` takes it.
    :param group: further arguments of the ``TaskGroup``.
    """
    own = dict(stages or {})
    told = callables(on_fault)
    _refuse(attempts, own, told)
    with TaskGroup(group_id, **group) as outer:
        submitting = {
            "job": job,
            "policy": policy,
            "progress_pattern": progress_pattern,
            "attempt_timeout": attempt_timeout,
            "deferrable": deferrable,
        }
        _Unrolling(submitting, attempts, own, told, {"on_attempt": on_attempt}, deferrable).build()
    return outer


def _refuse(attempts: object, stages: Mapping[str, Any], on_fault: Sequence[Any]) -> None:
    problems = []
    if not isinstance(attempts, int) or isinstance(attempts, bool) or not 1 <= attempts <= MAX_ATTEMPTS:
        problems.append(
            f"attempts: {attempts!r} is not allowed. Give 1 to {MAX_ATTEMPTS}; for more attempts use "
            "FaultTolerantTrainingOperator: its attempts are tries of one task, up to 128 restarts."
        )
    for name, stage in stages.items():
        if name not in OVERRIDABLE:
            problems.append(f"stages: {name!r} is not allowed. Give some of {', '.join(OVERRIDABLE)}.")
        elif not callable(stage):
            problems.append(f"stages[{name!r}]: {stage!r:.80} is not allowed. Give a @task function, or a callable.")
    problems += [
        f"on_fault: {one!r:.80} is not allowed. Give @task functions." for one in on_fault if not callable(one)
    ]
    if {"bisect", "decide"} <= stages.keys():
        problems.append(
            "stages['bisect']: not beside a 'decide' of your own, after which the job still has its nodes. "
            "Leave it out: resubmit does the bisect that the policy has decided."
        )
    if problems:
        raise TrainingSettingsError("\n".join(problems))


@dataclass
class _Unrolling:
    """The tasks of a group while they are made."""

    submitting: dict[str, Any]
    attempts: int
    own: Mapping[str, Callable[..., Any]]
    on_fault: Sequence[Callable[..., Any]]
    common: dict[str, Any]
    deferrable: bool
    group: Group = field(default_factory=Group)
    ends: list[Any] = field(default_factory=list)  # the tasks that training may end at
    extra: list[Any] = field(default_factory=list)  # the tasks of on_fault

    def __post_init__(self) -> None:
        self.common = {**self.common, "group": self.group}

    def build(self) -> None:
        """Make all tasks of the group, in its context."""
        looked = _task(self.own["preflight"], "preflight").output if "preflight" in self.own else None
        submit = SubmitTrainingOperator(task_id="submit", attempt=looked, **self.submitting, **self.common)
        self.group.stages.append(submit.task_id)
        before: list[Any] = [submit]
        for number in range(self.attempts):
            with TaskGroup(f"attempt_{number}"):
                before = self._round(number, before)
        result = TrainingResultOperator(task_id="result", trigger_rule=JOIN, **self.common)
        self.group.end = result.task_id
        self.group.stages.append(result.task_id)
        self.ends >> result
        if self.extra:
            self.extra >> self._heard() >> result
        clean_up = CancelTrainingOperator(task_id="clean_up", job=self.submitting["job"], **self.common)
        result >> clean_up.as_teardown()

    def _heard(self) -> Any:
        """Return the task that makes the tasks of ``on_fault`` no ends of the group, however they end."""
        from airflow.providers.standard.operators.empty import EmptyOperator

        return EmptyOperator(task_id="on_fault_done", trigger_rule=TriggerRule.ALL_DONE)

    def _round(self, number: int, before: list[Any]) -> list[Any]:
        """Make the tasks of one sub-group. Returns those that lead to the next one."""
        attempt: Any = [task.output for task in before]
        tasks: list[Any] = []
        if number > 0:
            verify = VerifyRecoveryOperator(
                task_id="verify_recovery",
                attempt=attempt,
                deferrable=self.deferrable,
                trigger_rule=JOIN,
                **self.common,
            )
            tasks, attempt = [verify], verify.output
        watch = WatchTrainingOperator(task_id="watch", attempt=attempt, deferrable=self.deferrable, **self.common)
        self.ends += [*tasks, watch]
        if "classify" in self.own:
            classify = _task(self.own["classify"], "classify", watch.output)
        else:
            classify = ClassifyFaultOperator(task_id="classify", attempt=watch.output, **self.common)
        tasks += [watch, classify, *self._decision(classify, last=number == self.attempts - 1)]
        self.group.rounds.append([task.task_id for task in tasks])
        self.group.stages += [task.task_id for task in tasks if isinstance(task, StageOperator)]
        self.ends.append(tasks[-1])
        return [task for task in tasks if isinstance(task, (RestartInPlaceOperator, ResubmitOperator))]

    def _decision(self, classify: Any, *, last: bool) -> list[Any]:
        """Make the branch and what it may lead to; ``give_up`` comes last."""
        names = ["give_up"] if last else ["restart_in_place", "resubmit", "give_up"]
        prefix = classify.task_id.rpartition(".")[0]
        ids = {name: f"{prefix}.{name}" for name in names}
        extra = [f"{prefix}.on_fault_{place}" for place in range(len(self.on_fault))]
        if "decide" in self.own:
            decide = _task(self.own["decide"], "decide", classify.output)
            attempt = classify.output
        else:
            decide = FaultPolicyBranchOperator(
                task_id="decide",
                attempt=classify.output,
                also=tuple(extra),
                bisect=f"{prefix}.bisect" if "bisect" in self.own and not last else None,
                **ids,
                **self.common,
            )
            attempt = decide.output
        told = [_task(make, f"on_fault_{place}", attempt) for place, make in enumerate(self.on_fault)]
        self.extra += told
        given = {"attempt": attempt, **self.common}
        actions: list[Any] = []
        if not last:
            actions.append(RestartInPlaceOperator(task_id="restart_in_place", **given))
            actions += self._resubmission(given)
        actions.append(GiveUpOperator(task_id="give_up", **given))
        decide >> actions
        for name in ("watch", "classify"):
            self.group.choices[f"{prefix}.{name}"] = ids
        return [decide, *told, *actions]

    def _resubmission(self, given: dict[str, Any]) -> list[Any]:
        if "bisect" not in self.own:
            return [ResubmitOperator(task_id="resubmit", **self.submitting, **given)]
        bisect = _task(self.own["bisect"], "bisect", given["attempt"])
        found = {**given, "attempt": [given["attempt"], bisect.output]}
        # A search that fails is made up for: ``resubmit`` does it then.
        rule = TriggerRule.ALL_DONE_MIN_ONE_SUCCESS
        return [bisect, ResubmitOperator(task_id="resubmit", trigger_rule=rule, **self.submitting, **found)]


def _task(make: Callable[..., Any], task_id: str, *attempt: Any) -> Any:
    """Make a user's own task, under our name. Returns its operator."""
    named = make.override(task_id=task_id) if hasattr(make, "override") else make
    made = named(*attempt)
    task = getattr(made, "operator", made)
    if task.task_id.rpartition(".")[2] != task_id:
        raise TrainingSettingsError(
            f"stages: the task of {task_id!r} is named {task.task_id!r}. Name it {task_id!r}: others find it by that."
        )
    return task
