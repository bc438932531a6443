"""``PreflightOperator``: nodes are looked at by a probe job, as before training, in a task of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException

from airflow_ft.agent.preflight_result import FAILED, Result
from airflow_ft.attempts.checkups import RELEASING_SET, Choice, remember_preflight
from airflow_ft.attempts.probe_work import Work
from airflow_ft.backends.base import Backend, TrainingJob
from airflow_ft.core.preflight import PreflightSettings
from airflow_ft.core.settings import SettingsError
from airflow_ft.diagnosis.preflighting import Preflighting, PreflightReport
from airflow_ft.operators.desk import now
from airflow_ft.operators.probing import ProbeOperator, nodes_problems, preflight_settings
from airflow_ft.operators.settings import TrainingSettingsError

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context

FAIL, CONTINUE = "fail", "continue"


class PreflightFailedError(AirflowException):
    """An item failed on some node. The message is the finding."""


class PreflightBrokenError(AirflowException):
    """The preflight could not be run on a node that was named, or on none of the others: nothing is known of them."""


class PreflightOperator(ProbeOperator):
    """Look at nodes before they are trained on: one probe job over all of them.

    For where the training's own command can't be wrapped, and for nodes that are idle. The return value has, also when
    the task fails: ``nodes`` (node to items), ``bad_nodes`` (who is to blame), ``good_nodes``, ``untested_nodes`` (with
    the reason), ``quarantined_nodes`` (left out), ``excluded_nodes`` (bad or in quarantine: keep training away from
    these), ``released_nodes``, ``failed`` and ``text``.

    :param preflight: the set (``quick``, ``standard``, ``deep``), ``PreflightSettings``, or a dictionary of them.
        Templated.
    :param on_failure: what a failed item does: ``fail`` the task (default), or ``continue``.
    :param on_error: what a preflight does that could not be run: ``fail`` (default) or ``continue``.

    ``job``, ``nodes``, ``attempt`` and ``update_quarantine`` are those of ``ProbeOperator``. With ``update_quarantine``
    bad nodes are put into quarantine; a node in quarantine that passes the set ``deep`` is released, but for one that a
    person has put there.
    """

    template_fields = ("job", "nodes", "attempt", "preflight")

    def __init__(
        self,
        *,
        job: TrainingJob,
        nodes: Any = None,
        preflight: PreflightSettings | Mapping[str, Any] | str = "standard",
        on_failure: str = FAIL,
        on_error: str = FAIL,
        update_quarantine: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, nodes=nodes, update_quarantine=update_quarantine, **kwargs)
        problems = nodes_problems(nodes)
        for name, value in (("on_failure", on_failure), ("on_error", on_error)):
            if value not in (FAIL, CONTINUE):
                problems.append(f"{name}: {value!r:.80} is not allowed. Give {FAIL} or {CONTINUE}.")
        try:
            self.preflight = preflight_settings(preflight).to_dict()
        except SettingsError as error:
            problems += [f"preflight.{problem}" for problem in error.problems]
        if problems:
            raise TrainingSettingsError("\n".join(problems))
        self.on_failure, self.on_error = on_failure, on_error

    async def probe(self, context: Context, job: TrainingJob, backend: Backend, work: Work) -> Any:
        """Look at the nodes; fail with the finding, or return it."""
        settings, witness = PreflightSettings.from_dict(self.preflight), self._witness(context, "preflight")
        choice = await self._chosen(job, backend, work)
        tags = self._tags(context)
        look = Preflighting(
            backend, job, settings, f"{work.name}-p", work.name, choice.pool, now, self._say, tags, work
        )
        report = (await look.look(choice.nodes)).but_untested(choice.unusable, "not in service")
        released: tuple[str, ...] = ()
        if self.update_quarantine:
            deep = settings.set == RELEASING_SET
            quarantine = self._quarantine(job)
            released = remember_preflight(quarantine, report, choice.kept, deep, witness, self._say)
        value = self._handed_on(_result(report, choice, released))
        if report.diagnosis is not None and self.on_failure == FAIL:
            context["ti"].xcom_push(key="return_value", value=value)
            raise PreflightFailedError(str(report))
        by_name = not isinstance(self._wanted(), str)
        if report.untested and (by_name or not report.nodes) and self.on_error == FAIL:
            context["ti"].xcom_push(key="return_value", value=value)
            raise PreflightBrokenError(str(report))
        return value


def _result(report: PreflightReport, choice: Choice, released: tuple[str, ...]) -> dict[str, Any]:
    quarantined = [one.node for one in choice.kept if one.node not in released]
    return {
        "text": str(report),
        "failed": report.diagnosis is not None,
        "nodes": {node: {one.item: _item(one) for one in items} for node, items in report.nodes.items()},
        "bad_nodes": list(report.bad_nodes),
        "good_nodes": list(report.good_nodes),
        "untested_nodes": dict(report.untested),
        "quarantined_nodes": quarantined,
        "released_nodes": list(released),
        "excluded_nodes": sorted({*report.bad_nodes, *quarantined}),
    }


def _item(result: Result) -> dict[str, str]:
    found = {"status": result.status, "value": result.value}
    return {**found, "need": result.need, "advice": result.advice} if result.status == FAILED else found
