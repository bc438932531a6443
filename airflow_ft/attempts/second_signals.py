"""Second signals: ask what the processes do before a silence is called a hang and acted upon.

``Watch`` lets it take samples while training is silent for long; ``core.vitals`` compares the first and the last. Where
the backend can't look at processes (or not now), the agents' lines in the log tell (``Sight.samples``), more rarely;
without agents there is no opinion, and silence alone has to last longer.

Before a verdict is acted upon the logs' ends are read afresh. Shortly before it is due, and as long as ranks are busy
and move no bytes, their stacks are looked at, too: who spins at one place (``core.stackplaces``) is not at work.
"""

from __future__ import annotations

from airflow_ft.attempts.deadlines import LOOK_SECONDS, limited
from airflow_ft.attempts.ports import Desk
from airflow_ft.attempts.sight import Sight
from airflow_ft.backends.abilities import PeeksStacks, SeesVitals
from airflow_ft.backends.base import Backend, BackendError, JobState, Observation, StackGroup
from airflow_ft.core.chain import JobRef
from airflow_ft.core.hang import HangVerdict
from airflow_ft.core.stackplaces import LOOKS, all_stand, frames, spinning, user_place
from airflow_ft.core.vitals import (
    CONFIRMS,
    CONTRADICTS,
    WINDOW_SECONDS,
    Opinion,
    Sample,
    gpus,
    may_act,
    opinion,
    spinning_opinion,
    waiting_opinion,
)

EVERY_SECONDS, SHARE = 1.0, 64  # a look each second, or each 64th part of the silence: looks may cost a cluster calls
KEPT = 16
TAIL_BYTES = 65_536
PEEK_EVERY_SECONDS = 0.5
PEEK_AHEAD_SECONDS = 2.5  # before the verdict is due: time for all looks


class SecondSignals:
    """The signals of one attempt, while it is silent."""

    def __init__(self, backend: Backend, ref: JobRef, desk: Desk) -> None:
        self._backend, self._ref, self._desk = backend, ref, desk
        self._samples: list[Sample] = []
        self._own: list[Sample] = []  # of these, what the backend was asked for
        self._asked_at = 0.0
        self._peeks: list[tuple[float, list[StackGroup]]] = []
        self._said = ""
        self._judged = 0  # the incident that was acted upon: it stays one, whatever the signals say later

    async def ask(self, sight: Sight, seen: Observation, floor: float) -> HangVerdict | None:
        """Return the detector's verdict with what the signals say, if it is to be acted upon by now.

        :param floor: the silence that is enough where no signal confirms it.
        """
        verdict = sight.verdict()
        if not sight.is_silent:
            self._samples, self._own = [], []
            self._peeks.clear()
            self._said = ""
            return None
        await self._sample(sight)
        if verdict is None and sight.seconds_left > PEEK_AHEAD_SECONDS:
            return None
        heard = self._opinion(seen)
        if heard.says != CONFIRMS and heard.ranks:
            heard = await self._look_closer(heard, sight)
        if verdict is None:
            return None
        if verdict.incident != self._judged:
            if not may_act(verdict, heard, floor):
                self._say(verdict, heard)
                return None
            if await self._advances_unseen(sight):
                return None
        self._judged = verdict.incident
        text = f"{verdict.text} Second signals: {heard.text}." if self._samples else verdict.text
        return verdict.but(kind=heard.kind or verdict.kind, text=text, ranks=heard.ranks or verdict.ranks)

    async def _sample(self, sight: Sight) -> None:
        if isinstance(self._backend, SeesVitals):
            await self._look(self._backend, sight.silence)
        seen = len(self._own) > 1 and self._own[-1].at - self._own[0].at >= WINDOW_SECONDS
        self._samples = self._own if seen or not sight.samples else list(sight.samples)

    async def _look(self, backend: SeesVitals, silence: float) -> None:
        at = self._desk.now().timestamp()
        if at - self._asked_at < max(EVERY_SECONDS, silence / SHARE):
            return
        self._asked_at = at
        try:
            ranks = await limited(backend.vitals(self._ref), LOOK_SECONDS, "looking at the processes")
        except BackendError:
            return  # no opinion
        self._own = [*self._own, Sample(at=at, ranks=tuple(ranks))][-KEPT:]

    async def _advances_unseen(self, sight: Sight) -> bool:
        """Read the ends of the logs afresh: it may be our stream that has stalled, not the training (WAT-05)."""
        try:
            tails = await limited(self._backend.log_tails(self._ref, TAIL_BYTES), LOOK_SECONDS, "reading logs afresh")
        except BackendError:
            return False
        step = sight.take_afresh(tails)
        if step is None:
            return False
        self._desk.say(f"The log is at step {step}; what we were given of it stood still. No hang.", warning=True)
        return True

    async def _look_closer(self, heard: Opinion, sight: Sight) -> Opinion:
        """Look at the stacks of the busy ranks; say so if they get nowhere."""
        at = self._desk.now().timestamp()
        if not isinstance(self._backend, PeeksStacks):
            return heard
        if not self._peeks or at - self._peeks[-1][0] >= max(PEEK_EVERY_SECONDS, sight.silence / SHARE):
            try:
                looking = self._backend.peek_stacks(self._ref, by_signal=sight.may_act)
                groups = await limited(looking, LOOK_SECONDS, "looking at stacks")
            except BackendError:
                return heard
            self._peeks = [*self._peeks, (at, list(groups))][-LOOKS:]
        looks = [{rank: frames(group.stack) for group in groups for rank in group.ranks} for _, groups in self._peeks]
        last = self._samples[-1].ranks
        world = max(max((rank.world_size or 0 for rank in last), default=0), len(last))
        found = spinning(looks, heard.ranks, world)
        if not found and heard.says != CONTRADICTS and all_stand(looks, heard.ranks):
            return waiting_opinion(heard.ranks, world)
        if not found:
            return heard
        stack = next(group.stack for group in self._peeks[-1][1] if found[0] in group.ranks)
        return spinning_opinion(found, user_place(stack))

    def _opinion(self, seen: Observation) -> Opinion:
        ended = [node.node for node in seen.nodes if node.state is JobState.ENDED and node.code == 0]
        first = self._samples[0] if self._samples else None
        return opinion(first, self._samples[-1] if self._samples else None, ended, gpus(self._samples))

    def _say(self, verdict: HangVerdict, heard: Opinion) -> None:
        if heard.says == CONTRADICTS and self._said != heard.says:
            self._said = heard.says
            self._desk.say(f"{verdict.text} But {heard.text}. It is given more time.", warning=True)
        elif not self._said:
            self._said = "suspected"
            self._desk.say(f"{verdict.text} Perhaps a hang ({heard.text}); waiting for more.", warning=True)
