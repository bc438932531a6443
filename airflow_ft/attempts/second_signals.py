"""Second signals: ask what the processes do before a silence is called a hang and acted upon.

``Watch`` lets it take a sample at each look while training is silent for long; ``core.vitals`` compares the first and
the last. A backend that can't see processes has no opinion: then silence alone has to last longer.
"""

from __future__ import annotations

from airflow_ft.attempts.deadlines import LOOK_SECONDS, limited
from airflow_ft.attempts.ports import Desk
from airflow_ft.attempts.sight import Sight
from airflow_ft.backends.base import Backend, BackendError, JobState, Observation, SeesVitals
from airflow_ft.core.chain import JobRef
from airflow_ft.core.hang import HangVerdict
from airflow_ft.core.vitals import CONTRADICTS, Opinion, Sample, may_act, opinion

EVERY_SECONDS = 1.0
KEPT = 16


class SecondSignals:
    """The signals of one attempt, while it is silent."""

    def __init__(self, backend: Backend, ref: JobRef, desk: Desk) -> None:
        self._backend, self._ref, self._desk = backend, ref, desk
        self._samples: list[Sample] = []
        self._said = ""
        self._judged = 0  # the incident that was acted upon: it stays one, whatever the signals say later

    async def ask(self, sight: Sight, seen: Observation, floor: float) -> HangVerdict | None:
        """Return the detector's verdict with what the signals say, if it is to be acted upon by now.

        :param floor: the silence that is enough where no signal confirms it.
        """
        verdict = sight.verdict()
        if not sight.is_silent:
            self._samples.clear()
            self._said = ""
            return None
        await self._sample()
        if verdict is None:
            return None
        heard = self._opinion(seen)
        if verdict.incident != self._judged and not may_act(verdict, heard, floor):
            self._say(verdict, heard)
            return None
        self._judged = verdict.incident
        text = f"{verdict.text} Second signals: {heard.text}." if self._samples else verdict.text
        return verdict.but(kind=heard.kind or verdict.kind, text=text)

    async def _sample(self) -> None:
        at = self._desk.now().timestamp()
        if not isinstance(self._backend, SeesVitals) or (self._samples and at - self._samples[-1].at < EVERY_SECONDS):
            return
        try:
            ranks = await limited(self._backend.vitals(self._ref), LOOK_SECONDS, "looking at the processes")
        except BackendError:
            return  # no opinion
        self._samples = [*self._samples, Sample(at=at, ranks=tuple(ranks))][-KEPT:]

    def _opinion(self, seen: Observation) -> Opinion:
        ended = [node.node for node in seen.nodes if node.state is JobState.ENDED and node.code == 0]
        first = self._samples[0] if self._samples else None
        return opinion(first, self._samples[-1] if self._samples else None, ended)

    def _say(self, verdict: HangVerdict, heard: Opinion) -> None:
        if heard.says == CONTRADICTS and self._said != heard.says:
            self._said = heard.says
            self._desk.say(f"{verdict.text} But {heard.text}. It is given more time.", warning=True)
        elif not self._said:
            self._said = "suspected"
            self._desk.say(f"{verdict.text} Perhaps a hang ({heard.text}); waiting for more.", warning=True)
