"""What a user gives to an operator, checked when the DAG is parsed: job, policy, retries."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow_ft.backends.base import TrainingJob
from airflow_ft.core.annotations import MAX_RESTARTS
from airflow_ft.core.policy import FaultTolerancePolicy
from airflow_ft.core.progress import InvalidPatternError, compile_pattern
from airflow_ft.core.settings import SettingsError

# Airflow's own limit must never be the one that binds: it counts tries, and a lost worker consumes a try, never an
# attempt. What ends a chain is the policy's budget.
RETRIES = 1000
LOST_TRY_DELAY = timedelta(seconds=10)  # before the try that follows a lost worker


class TrainingSettingsError(ValueError):
    """An argument of the operator is wrong. Names the field, what was given and what is allowed."""


def refuse_retries(arguments: dict[str, Any]) -> None:
    """Raise when a DAG's author wrote ``retries=``. Our own value comes back when a task is unmapped."""
    given = arguments.get("retries", RETRIES)
    if given != RETRIES:
        raise TrainingSettingsError(
            f"retries: {given!r} is not allowed here. Restarts are limited by the policy: give "
            f"policy=FaultTolerancePolicy.full(max_restarts={_restarts(given)})."
        )
    if (
        arguments.get("retry_policy") is not None
        and type(arguments["retry_policy"]).__name__ != "FaultToleranceRetryPolicy"
    ):
        raise TrainingSettingsError(
            "retry_policy: the operator brings its own. Say what may be restarted with policy=FaultTolerancePolicy…."
        )


def callables(given: Any) -> tuple[Any, ...]:
    """Return what was given as one callable or as several: ``on_attempt``, ``on_fault``."""
    return tuple(given) if isinstance(given, (list, tuple)) else (given,)


def policy_from(given: Any, job: Any = None, folder: str | None = None) -> FaultTolerancePolicy:
    """Return the policy that was given: an object, a dictionary of its fields, a preset's name or a file's path.

    None was given: the annotations of the job's manifest (mission M7), else the default of Airflow's configuration.
    Raises ``TrainingSettingsError``.

    :param folder: where a relative path is looked for first: beside the DAG file.
    """
    if isinstance(given, FaultTolerancePolicy):
        return given
    try:
        if given is None:
            annotated = job.policy_annotations() if hasattr(job, "policy_annotations") else {}
            return FaultTolerancePolicy.from_annotations(annotated) if annotated else default_policy()
        if isinstance(given, dict):
            return FaultTolerancePolicy.from_document(given)
        if isinstance(given, (str, Path)):
            return FaultTolerancePolicy.named(_found(str(given), folder))
    except SettingsError as error:
        raise TrainingSettingsError(f"policy: {error}") from None
    raise TrainingSettingsError(
        f"policy: {given!r} is not allowed. Give a FaultTolerancePolicy (off(), basic(), advanced(), full()), "
        "a preset's name, the path of a YAML file, a dictionary of its fields, or nothing for the default of "
        "[fault_tolerance]."
    )


def dag_folder(operator: Any) -> str | None:
    """Return the folder of the DAG file that an operator stands in, if it stands in one."""
    return str(Path(operator.dag.fileloc).parent) if operator.has_dag() else None


def _found(text: str, folder: str | None) -> str:
    beside = Path(folder, text) if folder else Path(text)
    return str(beside) if beside.suffix in (".yaml", ".yml") and beside.is_file() else text


def default_policy() -> FaultTolerancePolicy:
    """Return the policy of Airflow's section ``[fault_tolerance]``: ``policy``, else ``mode`` and ``max_restarts``."""
    from airflow.sdk.configuration import conf

    named = (conf.get("fault_tolerance", "policy", fallback="") or "").strip()
    if named:
        try:
            return FaultTolerancePolicy.named(named)
        except SettingsError as error:
            raise SettingsError(f"[fault_tolerance] policy: {problem}" for problem in error.problems) from None
    mode = conf.get("fault_tolerance", "mode", fallback="full")
    most = conf.getint("fault_tolerance", "max_restarts", fallback=3)
    return FaultTolerancePolicy(mode=mode, max_restarts=most if mode != "off" else 0)


def job_from(given: Any) -> TrainingJob:
    """Return the job. Raises ``TrainingSettingsError`` for anything else."""
    if isinstance(given, TrainingJob):
        return given
    raise TrainingSettingsError(
        f"job: {given!r} is not allowed. Give a training job, for example LocalJob(command=[…])."
    )


def refuse_arguments(
    deferrable: object, attempt_timeout: object, progress_pattern: object, log_tail_lines: object, on_attempt: object
) -> None:
    """Raise for the operator's own arguments that are wrong, all at once: else they would be found after hours."""
    problems = []
    if not isinstance(deferrable, bool):
        problems.append(f"deferrable: {deferrable!r:.80} is not allowed. Give True or False.")
    if attempt_timeout is not None and not (isinstance(attempt_timeout, timedelta) and attempt_timeout > timedelta(0)):
        problems.append(f"attempt_timeout: {attempt_timeout!r:.80} is not allowed. Give a positive timedelta, or None.")
    if not isinstance(log_tail_lines, int) or isinstance(log_tail_lines, bool) or log_tail_lines < 0:
        problems.append(f"log_tail_lines: {log_tail_lines!r:.80} is not allowed. Give a number of lines; 0 is none.")
    if not isinstance(on_attempt, tuple) or not all(callable(one) for one in on_attempt):
        asked = "Give a callable (any Airflow notifier), or a list."
        problems.append(f"on_attempt: {on_attempt!r:.80} is not allowed. {asked}")
    problems += _pattern_problems(progress_pattern)
    if problems:
        raise TrainingSettingsError("\n".join(problems))


def _pattern_problems(pattern: object) -> list[str]:
    if pattern is None:
        return []
    if not isinstance(pattern, str):
        asked = "Give a regular expression (RE2) with a group named step: 'at (?P<step>[0-9]+)'."
        return [f"progress_pattern: {pattern!r:.80} is not allowed. {asked}"]
    try:
        compile_pattern(pattern)
    except InvalidPatternError as error:
        return [str(error)]
    return []


def _restarts(retries: object) -> int:
    """The budget that somebody who wrote so many retries wants."""
    return min(MAX_RESTARTS, max(0, retries)) if isinstance(retries, int) and not isinstance(retries, bool) else 3
