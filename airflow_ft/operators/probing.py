"""What the operators that run probe jobs share: which nodes, names that survive a lost worker, and an end by a person.

They wait in the worker: a preflight is over within a minute, a bisect within its time budget. Names and nodes are kept
in the task's state store while the work is open (``Work``), so that a try that follows a lost worker adopts what has
run, and a try that a person has started anew tests anew. Where no try follows, the collector removes its jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from airflow.sdk import BaseOperator, XComArg
from airflow.sdk.exceptions import AirflowException

from airflow_ft.attempts.checkups import FREE, QUARANTINED, Choice, Witness, chosen
from airflow_ft.attempts.probe_work import Work
from airflow_ft.attempts.quarantine import Quarantine
from airflow_ft.backends.base import Backend, TrainingJob
from airflow_ft.backends.registry import create_backend
from airflow_ft.core.names import chain_id
from airflow_ft.core.preflight import PreflightSettings
from airflow_ft.core.sanitise import sanitise
from airflow_ft.core.settings import SettingsError
from airflow_ft.diagnosis.probing import refuse_probes
from airflow_ft.operators.desk import TaskStateStore, map_index_of, now
from airflow_ft.operators.jobs import RendersJobs, job_to_run
from airflow_ft.operators.settings import TrainingSettingsError, job_from
from airflow_ft.operators.shared import quarantine_of

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

T = TypeVar("T")


class ProbesStoppedError(AirflowException):
    """This task's process was ended while probe jobs ran. They are removed."""


class ProbeOperator(RendersJobs, BaseOperator):
    """The base of ``PreflightOperator`` and ``BisectOperator``.

    :param job: where the nodes are: ``LocalJob``, … Its command isn't run; every string in it is templated.
    :param nodes: ``free`` (default): those that nobody uses, without those in quarantine. ``quarantined``: those in
        quarantine that are free, with two others to compare with. Or names: a list, or "n1,n2" (templated).
    :param attempt: what a stage of the explicit form has handed on. Then ``nodes`` are by default those of the attempt,
        and the return value says which attempt it is about: the stage after this one goes by what was found.
    :param update_quarantine: write what was found into the quarantine that all DAGs share.
    """

    template_fields: Sequence[str] = ("job", "nodes", "attempt")
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json", "nodes": "json"}
    ui_color = "#e8f4ea"

    def __init__(
        self,
        *,
        job: TrainingJob,
        nodes: Any = None,
        attempt: Any = None,
        update_quarantine: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job if isinstance(job, XComArg) else job_from(job)
        self.nodes = nodes
        self.attempt = attempt
        self.update_quarantine = update_quarantine
        self._stop: Any = None
        self._killed = False

    def execute(self, context: Context) -> Any:
        """Run the probe jobs, and return what they came to."""
        job = job_to_run(self.job)
        backend = create_backend(job.backend)
        refuse_probes(backend)
        ti = context["ti"]
        name = chain_id(ti.dag_id, ti.run_id, ti.task_id, map_index_of(ti), str(ti.id))
        work = Work(TaskStateStore(context["task_state_store"]), name)
        try:
            return self._stoppable(self.probe(context, job, backend, work))
        finally:
            work.close()

    async def probe(self, context: Context, job: TrainingJob, backend: Backend, work: Work) -> Any:
        """Run the probe jobs under names that begin with the work's (the operator's)."""
        raise NotImplementedError

    def on_kill(self) -> None:
        """Remove the probe jobs that run. Called in a signal handler: it only wakes the event loop."""
        self._killed = True
        stop, self._stop = self._stop, None  # once: a second cancel would cut the first one's cleaning short
        if stop is not None:
            stop()

    def _stoppable(self, probing: Coroutine[Any, Any, T]) -> T:
        async def run() -> T:
            loop, task = asyncio.get_running_loop(), asyncio.ensure_future(probing)
            self._stop = lambda: loop.call_soon_threadsafe(task.cancel)
            if self._killed:
                task.cancel()
            return await task

        try:
            return asyncio.run(run())
        except asyncio.CancelledError:
            raise ProbesStoppedError("This task was stopped; its probe jobs are removed.") from None
        finally:
            self._stop = None

    async def _chosen(self, job: TrainingJob, backend: Backend, work: Work) -> Choice:
        choice = await chosen(self._wanted(), backend, job, self._quarantine(job), now(), self._say)
        return replace(choice, nodes=work.nodes(choice.nodes))

    def _wanted(self) -> str | list[str]:
        """Return the nodes to look at: those that were asked for, the attempt's, or the free ones."""
        attempt = self.attempt if isinstance(self.attempt, Mapping) else {}
        return wanted(self.nodes if self.nodes is not None else list(attempt.get("nodes") or ()) or FREE)

    def _handed_on(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Return what was found, with the attempt that it is about. Any database takes it as an XCom."""
        attempt = self.attempt if isinstance(self.attempt, Mapping) else {}
        about = {key: attempt[key] for key in ("chain_id", "number", "generation") if key in attempt}
        return as_value({**about, **result})

    def _quarantine(self, job: TrainingJob) -> Quarantine:
        return quarantine_of(job)

    def _witness(self, context: Context, what: str) -> Witness:
        task = f"{context['ti'].dag_id}.{self.task_id}"
        return Witness(context["ti"].dag_id, task, f"{task}, {what}", now())

    def _tags(self, context: Context) -> dict[str, str]:
        ti = context["ti"]
        where = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id}
        return {**where, "map_index": str(map_index_of(ti))}

    def _say(self, text: str) -> None:
        self.log.info("%s", text)


def wanted(nodes: Any) -> str | list[str]:
    """Return the nodes that a user has named. Raises ``TrainingSettingsError``."""
    if nodes in (FREE, QUARANTINED):
        return str(nodes)
    names = nodes.replace(",", " ").split() if isinstance(nodes, str) else nodes
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) and name for name in names):
        raise TrainingSettingsError(
            f"nodes: {nodes!r:.80} is not allowed. Give {FREE!r}, {QUARANTINED!r}, or a list of names."
        )
    return list(names)


def nodes_problems(nodes: Any) -> list[str]:
    """Return what is wrong with the argument ``nodes``, as far as it can be known when the DAG is parsed."""
    if nodes is None or isinstance(nodes, XComArg) or (isinstance(nodes, str) and "{{" in nodes):
        return []
    try:
        wanted(nodes)
    except TrainingSettingsError as error:
        return [str(error)]
    return []


def preflight_settings(given: Any) -> PreflightSettings:
    """Return the preflight that a user has given. Raises ``SettingsError``."""
    if isinstance(given, PreflightSettings):
        settings = given
    elif isinstance(given, str):
        settings = PreflightSettings(set=given)
    else:
        settings = PreflightSettings.from_dict({"set": "standard", **given} if isinstance(given, Mapping) else given)
    if settings.set == "off":
        raise SettingsError(["set: 'off' is not allowed here. Give quick, standard or deep."])
    return settings


def as_value(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result that any database takes as an XCom."""
    value = sanitise(dict(result))
    assert isinstance(value, dict)
    return value
