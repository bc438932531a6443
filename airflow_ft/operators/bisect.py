"""``BisectOperator``: which node, or which pair, is bad? A search with probe jobs, as a task of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_ft.attempts.checkups import FREE, remember_bisect
from airflow_ft.attempts.probe_work import Work
from airflow_ft.backends.base import Backend, TrainingJob
from airflow_ft.core.bisect import BisectError, BisectResult
from airflow_ft.core.bisect_settings import BisectSettings
from airflow_ft.core.preflight import PreflightSettings
from airflow_ft.core.settings import SettingsError
from airflow_ft.diagnosis.bisecting import Bisecting
from airflow_ft.operators.desk import now
from airflow_ft.operators.probing import ProbeOperator, nodes_problems, preflight_settings
from airflow_ft.operators.settings import TrainingSettingsError

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context


class BisectOperator(ProbeOperator):
    """Search the bad node or the bad pair with groups of nodes, each of which runs a probe job.

    It succeeds whether something is found or not. The return value has ``faulty_nodes``, ``faulty_links``,
    ``cleared_nodes``, ``inconclusive``, ``confidence`` (node to probability), ``tests``, ``rounds``, ``lost``,
    ``excluded_nodes`` (faulty, or the end of a bad link that is left out: keep training away from these) and ``text``.
    How far it is stands in the log, round by round.

    :param bisect: ``BisectSettings``, or a dictionary of them: ``command`` (your reproducer: code 0 is a pass; default:
        the preflight), ``seconds`` (the time budget), ``test_seconds``, ``group_min``, ``max_tests``,
        ``detection_probability``. Templated.

    :param preflight: what a test looks at where ``bisect`` has no command: a set, ``PreflightSettings``, or a
        dictionary of them (default: ``standard``). Templated.

    ``job``, ``nodes``, ``attempt`` and ``update_quarantine`` are those of ``ProbeOperator``: nodes in quarantine are
    left out. What your own command found counts in the quarantine like a job's word: two unrelated tasks have to say
    it.
    """

    template_fields = ("job", "nodes", "attempt", "bisect", "preflight")

    def __init__(
        self,
        *,
        job: TrainingJob,
        nodes: Any = None,
        bisect: BisectSettings | Mapping[str, Any] | None = None,
        preflight: PreflightSettings | Mapping[str, Any] | str = "standard",
        update_quarantine: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, nodes=nodes, update_quarantine=update_quarantine, **kwargs)
        problems = nodes_problems(nodes)
        try:
            given = bisect if isinstance(bisect, BisectSettings) else BisectSettings.from_dict(bisect or {})
        except SettingsError as error:
            problems += [f"bisect.{problem}" for problem in error.problems]
        try:
            self.preflight = preflight_settings(preflight).to_dict()
        except SettingsError as error:
            problems += [f"preflight.{problem}" for problem in error.problems]
        if problems:
            raise TrainingSettingsError("\n".join(problems))
        self.bisect = given.to_dict()

    async def probe(self, context: Context, job: TrainingJob, backend: Backend, work: Work) -> Any:
        """Search, and return what was found."""
        settings = BisectSettings.from_dict(self.bisect)
        witness = self._witness(context, "bisect")
        choice = await self._chosen(job, backend, work)
        if choice.unusable:
            raise BisectError(f"nodes: {', '.join(choice.unusable)} not in service. Give others, or {FREE!r}.")
        tags, look = self._tags(context), PreflightSettings.from_dict(self.preflight)
        where = (f"{work.name}-b", work.name, choice.pool)
        search = Bisecting(backend, job, settings, *where, now, self._say, tags, look, work)
        result = await search.search(choice.nodes)
        if self.update_quarantine:
            remember_bisect(self._quarantine(job), result, bool(settings.command), witness, self._say)
        return self._handed_on(_result(result))


def _result(result: BisectResult) -> dict[str, Any]:
    found = [*result.faulty_nodes, *(link[-1] for link in result.faulty_links)]
    return {
        "text": f"Bisect: {result}.",
        "faulty_nodes": list(result.faulty_nodes),
        "faulty_links": [list(link) for link in result.faulty_links],
        "cleared_nodes": list(result.cleared_nodes),
        "inconclusive": list(result.inconclusive),
        "confidence": {node: round(sure, 4) for node, sure in result.confidence.items()},
        "nothing_wrong": round(result.nothing_wrong, 4),
        "tests": result.tests,
        "rounds": result.rounds,
        "lost": result.lost,
        "excluded_nodes": list(dict.fromkeys(found)),
    }


def result_of_value(value: Mapping[str, Any]) -> BisectResult:
    """Return the result that a task has returned: this operator's, or somebody's own with ``faulty_nodes`` at least."""
    faulty = tuple(str(node) for node in value.get("faulty_nodes") or ())
    confidence = {str(node): float(sure) for node, sure in dict(value.get("confidence") or {}).items()}
    return BisectResult(
        faulty_nodes=faulty,
        faulty_links=tuple((str(one), str(other)) for one, other in value.get("faulty_links") or ()),
        cleared_nodes=tuple(map(str, value.get("cleared_nodes") or ())),
        inconclusive=tuple(map(str, value.get("inconclusive") or ())),
        tests=int(value.get("tests") or 0),
        rounds=int(value.get("rounds") or 0),
        lost=int(value.get("lost") or 0),
        confidence={**dict.fromkeys(faulty, 1.0), **confidence},
        nothing_wrong=float(value.get("nothing_wrong") or 0.0),
    )
