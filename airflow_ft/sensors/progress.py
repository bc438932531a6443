"""``TrainingProgressSensor``: wait until a training ends or passes a step; fail when it stopped advancing."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, ClassVar

import re2
from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowException, AirflowSensorTimeout, AirflowSkipException

from airflow_ft.backends.base import TrainingJob
from airflow_ft.core.policy import HangSettings
from airflow_ft.core.progress import InvalidPatternError, compile_pattern
from airflow_ft.operators.jobs import RendersJobs

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

    from airflow_ft.attempts.lookout import LookoutOrder


class TrainingStoppedError(AirflowException):
    """The training that was waited for hangs, failed, or ended too early."""


def compile_end(pattern: str) -> None:
    """Raise ``InvalidPatternError`` if the pattern of an end can't be used."""
    try:
        re2.compile(pattern)
    except re2.error as error:
        raise InvalidPatternError(f"end_pattern: {pattern!r} is no RE2 pattern: {error}.") from error


_KEY = r"[\w./-]+"
_VALUE = r"[\w.-]*"
_REQUIREMENT = rf"(?:!?\s*{_KEY}|{_KEY}\s*(?:==?|!=)\s*{_VALUE}|{_KEY}\s+(?:not)?in\s*\([\w.,\s-]+\))"
_SELECTOR = re.compile(rf"\s*{_REQUIREMENT}\s*(?:,\s*{_REQUIREMENT}\s*)*")


def check_selector(selector: str) -> None:
    """Raise ``ValueError`` if this is no label selector. One with templates is read when they are rendered."""
    if "{{" not in selector and "{%" not in selector and _SELECTOR.fullmatch(selector) is None:
        raise ValueError(
            f"pod_selector: {selector!r} is not allowed. Write labels as kubectl -l takes them: app=llama,role=worker."
        )


class TrainingProgressSensor(RendersJobs, BaseSensorOperator):
    """Watch a training that something else has started, by what it prints. It is never touched.

    Give ``job``, ``pod_selector`` or ``log``, or ``touched``, alone or beside one of them. The task's return value is
    the last progress; it is also in the XCom ``ft_progress`` while the sensor waits, at most each 10 s. ``soft_fail``
    and ``timeout`` are those of every sensor.

    :param job: a job of any backend: a ``JobRef`` record, as a dictionary or JSON, or a ``ForeignJob`` (templated).
    :param pod_selector: the labels of the pods of a training on Kubernetes, as ``kubectl -l`` takes them (templated):
        the logs of all that match are followed, whichever of them prints the steps. It has ended when all pods ended,
        or are gone for five minutes; what failed and was replaced doesn't count.
    :param namespace: of these pods (templated). Default: the connection's, then ``default``.
    :param conn_id: a connection of type Kubernetes, for these pods.
    :param container: the container that trains, in pods with several. Default: the pod's default container, the one
        that asks for GPUs, the first.
    :param log: a log file that worker and triggerer can read, or a glob of several (templated).
    :param touched: a file that training changes while it advances, or a glob (templated): each newer modification time
        counts as a step, for trainings whose output says nothing. Alone it can't tell an end: give ``until_step``.
    :param until_step: succeed when this step was passed; otherwise when training ended.
    :param end_pattern: a regular expression (RE2) of the line that ends a training, where its end isn't recognised by
        itself: in a log file, or in a pod that runs on.
    :param progress_pattern: a regular expression with a group ``step`` (and ``loss``, ``total``), for steps in a form
        that isn't recognised by itself.
    :param hang: when silence is a hang: ``HangSettings``, or a dictionary of its fields. With the action ``notify`` it
        is a warning instead of a failure.
    :param poll_interval: seconds between two looks.
    :param deferrable: wait in the triggerer (default) instead of holding a worker slot.
    """

    template_fields: Sequence[str] = ("job", "pod_selector", "namespace", "log_files", "touched", "until_step")
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json"}
    ui_color = "#e8f4ea"

    def __init__(
        self,
        *,
        job: Any = None,
        pod_selector: str | None = None,
        namespace: str | None = None,
        conn_id: str = "kubernetes_default",
        container: str | None = None,
        log: str | None = None,
        touched: str | None = None,
        until_step: int | str | None = None,
        end_pattern: str | None = None,
        progress_pattern: str | None = None,
        hang: HangSettings | Mapping[str, Any] | None = None,
        poll_interval: float = 5.0,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        sources = sum(source is not None for source in (job, pod_selector, log))
        if sources > 1 or (not sources and touched is None):
            raise ValueError(
                "TrainingProgressSensor: give one of job (a JobRef record or a ForeignJob), pod_selector (labels) and "
                "log (a path or a glob), or touched."
            )
        if pod_selector is not None:
            check_selector(pod_selector)
        if not sources and until_step in (None, ""):
            raise ValueError(
                "until_step: missing. A file's changes (touched) don't tell when training ends. Give until_step (how "
                "many changes), or job, pod_selector or log beside it."
            )
        if poll_interval <= 0:
            raise ValueError(f"poll_interval: {poll_interval!r} is not allowed. Give seconds above 0.")
        if progress_pattern is not None:
            compile_pattern(progress_pattern)
        if end_pattern is not None:
            compile_end(end_pattern)
        self.job, self.log_files, self.touched = job, log, touched
        self.pod_selector, self.namespace, self.conn_id, self.container = pod_selector, namespace, conn_id, container
        self.until_step = until_step
        self.end_pattern, self.progress_pattern = end_pattern, progress_pattern
        self.hang = hang if isinstance(hang, HangSettings) else HangSettings(**(hang or {}))
        self.poll_interval = poll_interval
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        """Wait, in the triggerer or here."""
        order = self._order(context)
        if self.deferrable:
            from airflow_ft.triggers.progress import TrainingProgressTrigger

            self.log.info("Waiting in the triggerer.")
            self.defer(
                trigger=TrainingProgressTrigger(order=order.to_record()),
                method_name="execute_complete",
                timeout=timedelta(seconds=self.timeout),
            )
        try:
            return self.execute_complete(context, self._wait_here(context, order))
        except AirflowException as error:  # a deferred task gets this from ``resume_execution``
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(f"Skipped, since soft_fail or never_fail is set: {error}") from error
            raise

    def execute_complete(self, context: Context, event: dict[str, Any] | None = None) -> Any:
        """Turn the result into the end of this task."""
        event = event or {}
        text = str(event.get("text") or "The trigger's event can't be read.")
        if event.get("end") not in ("ended", "passed"):
            raise TrainingStoppedError(text)
        self.log.info("%s", text)
        return event.get("progress", {})

    def _wait_here(self, context: Context, order: LookoutOrder) -> dict[str, Any]:
        from airflow_ft.attempts.lookout import Lookout
        from airflow_ft.backends.time_limits import within
        from airflow_ft.operators.desk import WorkerDesk

        async def wait() -> dict[str, Any]:
            lookout = Lookout(order, WorkerDesk(self.log, context["ti"]))
            return (await within(self.timeout, lookout.watch())).to_record()

        try:
            return asyncio.run(wait())
        except (TimeoutError, asyncio.TimeoutError):
            raise AirflowSensorTimeout(f"It has neither ended nor hung within {self.timeout:g} s.") from None

    def _selection(self) -> dict[str, Any] | None:
        if self.pod_selector is None:
            return None
        where = {"namespace": self.namespace or None, "conn_id": self.conn_id, "container": self.container}
        return {"selector": self.pod_selector, **where}

    def _reference(self) -> Any:
        if not isinstance(self.job, TrainingJob):
            return json.loads(self.job) if isinstance(self.job, str) else self.job
        from airflow_ft.backends.registry import create_backend

        found = asyncio.run(create_backend(self.job.backend).find("", "", self.job))
        if found is None:
            raise TrainingStoppedError(f"job: {getattr(self.job, 'words', self.job)} does not exist (any more).")
        return found.to_record()

    def _order(self, context: Context) -> LookoutOrder:
        from airflow_ft.attempts.lookout import LookoutOrder
        from airflow_ft.attempts.sight import detector_settings
        from airflow_ft.operators.desk import try_info

        if self.pod_selector is not None:
            check_selector(self.pod_selector)
        return LookoutOrder.from_record(
            {
                "info": try_info(context),
                "ref": self._reference(),
                "pods": self._selection(),
                "files": self.log_files,
                "touched": self.touched,
                "until_step": int(self.until_step) if self.until_step not in (None, "") else None,
                "end_pattern": self.end_pattern,
                "progress_pattern": self.progress_pattern,
                "hang": detector_settings(self.hang).model_dump(),
                "on_hang": self.hang.action,
                "poll_seconds": self.poll_interval,
                "deferred_at": datetime.now(timezone.utc),
            }
        )
