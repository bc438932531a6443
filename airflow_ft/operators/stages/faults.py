"""The stages between a fault and what is done about it: classify, the policy's branch, restart in place, give up."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow_ft.attempts.handing_on import StageAttempt, is_over
from airflow_ft.attempts.ports import SeenFault
from airflow_ft.attempts.record import STOPPED, answer_question, with_event
from airflow_ft.attempts.staged import chosen, said_by_stage
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.faults import FaultClass
from airflow_ft.operators.asking import ask_person, asked_at, is_open, look_for_answer, not_answered, understood
from airflow_ft.operators.desk import now, quiet, try_info
from airflow_ft.operators.settings import TrainingSettingsError
from airflow_ft.operators.stages.base import StageOperator

ASKED = "stage/asked"
CLASSES = tuple(one.value for one in FaultClass)


class ClassifyFaultOperator(StageOperator):
    """Gather evidence from all ranks and nodes, and classify the fault. Nothing is killed: the nodes are held."""

    def stage(self, context: Any) -> Any:
        """Classify the fault that the watch has seen."""
        fault = self.book.fault
        if fault is not None and fault.diagnosis is None:
            fault = self.book.fault = self._step(context, lambda watch, seen=fault: watch.diagnose(seen))  # type: ignore[misc]
        if fault is not None and fault.diagnosis is not None:
            self.log.info("%s: %s", fault.diagnosis.fault_class.value, fault.diagnosis.text)
        return self._hands_on()


class DecidingStage(StageOperator):
    """A stage that needs the policy's decision, and makes it if no stage before has."""

    def _decided(self, context: Any) -> SeenFault | None:
        """Return the fault with its decision, or ``None`` if there is none on its way."""
        fault = self.book.fault
        if fault is None:
            return None
        for given in self._given():
            fault = self._said(fault, given)
        if fault.diagnosis is None:
            fault = self._step(context, lambda watch, seen=fault: watch.diagnose(seen))  # type: ignore[misc]
        if fault.incident is None:
            fault = self._step(context, lambda watch, seen=fault: watch.decide(seen))  # type: ignore[misc]
        if fault != self.book.fault:
            self.book.fault = fault
        return fault

    def _said(self, fault: SeenFault, given: dict[str, Any]) -> SeenFault:
        """Take over what a user's own stage takes the fault for."""
        chain = self._chain()
        said = given.get("fault_class")
        told = (given.get("chain_id"), given.get("number"), given.get("generation"))
        if said is None or told != (chain.chain_id, fault.attempt, fault.generation):
            return fault
        if said not in CLASSES:
            raise TrainingSettingsError(f"fault_class: {said!r} is not allowed. Give one of {', '.join(CLASSES)}.")
        attempt = StageAttempt.from_record(given)
        by = attempt.stage if attempt.stage != self.task_id else "a stage"
        return said_by_stage(fault, str(said), attempt.text, attempt.suspects, by)

    # --- a person is asked ---------------------------------------------------------------------------------------

    def _ask(self, context: Any, *, anew: bool = True) -> None:
        """Park this task until a person has answered the question that stands in the chain.

        :param anew: whether it has just arisen. Else a try of this task that was lost may have asked already, and what
            was answered is kept: it is looked for first, where there is a triggerer.
        """
        chain, info = self._chain(), try_info(context)
        since = asked_at(chain, self.book.chain)
        if not anew and info.try_number > 1 and self.book.settings.deferrable:
            look_for_answer(info, since, quiet(), self.log)
        ask_person(context["ti"], chain, self.policy, since, self.log)

    def person_answered(self, context: Any, event: Any = None) -> Any:
        """Take a person's answer (or the default, at the deadline), and go on."""
        return self._guarded(context, lambda: self._answered(context, event))

    def _answered(self, context: Any, event: Any) -> Any:
        chain = self._chain()
        if is_open(chain.decision):
            if not_answered(event):
                self._ask(context)
            answer, by = understood(event, self.policy)
            chain = answer_question(self.book.chain, chain, answer, by, self.policy, now())
            self._told(context, chain)
            if chain.open is not None:  # the job that was held is restarted in place
                self.book.fault = SeenFault.from_record(self.book.get(ASKED))
        return self.stage(context)


class FaultPolicyBranchOperator(DecidingStage):
    """Let the policy decide about the fault, and follow the task that carries it out; all others are skipped at once.

    :param restart_in_place: task to follow for a restart in place.
    :param resubmit: task to follow for a resubmission, with nodes excluded or not.
    :param bisect: task to follow for a bisect, beside ``resubmit``; the job is stopped by then. Without it
        ``resubmit`` does the bisect.
    :param give_up: task to follow when training is stopped.
    :param also: tasks that are followed whatever is decided.
    """

    BRANCHES: ClassVar[dict[Action, str]] = {
        Action.RESTART_IN_PLACE: "restart_in_place",
        Action.RESUBMIT: "resubmit",
        Action.RESUBMIT_EXCLUDING: "resubmit",
        Action.BISECT: "resubmit",  # it bisects first
        Action.FAIL: "give_up",
    }

    def __init__(
        self,
        *,
        give_up: str,
        restart_in_place: str | None = None,
        resubmit: str | None = None,
        bisect: str | None = None,
        also: tuple[str, ...] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.tasks = {"restart_in_place": restart_in_place, "resubmit": resubmit, "give_up": give_up}
        self.bisect = bisect
        self.also = also

    def stage(self, context: Any) -> Any:
        """Decide, and skip what isn't needed."""
        fault = self._decided(context)
        if fault is not None and fault.incident is not None and self._lets_go(fault.incident.decision):
            asks = is_open(fault.incident.decision)
            if asks:
                self.book.set(ASKED, fault.but(incident=None).to_record())
            self._recorded(context, self._step(context, lambda watch, seen=fault: watch.carry_out(seen)))  # type: ignore[misc]
            fault = None
            if asks:
                self._ask(context)
        if is_open(self._chain().decision):
            self._ask(context, anew=False)
        decision = fault.incident.decision if fault is not None and fault.incident else self._chain().decision
        action = decision.action if decision is not None else Action.RESUBMIT  # it adopts what runs
        chosen_task = self.tasks[self.BRANCHES.get(action, "give_up")]
        if chosen_task is None:
            self.log.warning("This was the last attempt that the group has room for.")
            chosen_task = self.tasks["give_up"]
        assert chosen_task is not None
        self.log.info("%s: %s", chosen_task, decision.reason if decision is not None else "")
        kept = {chosen_task, *self.also}
        if self.bisect is not None and action is Action.BISECT:
            kept.add(self.bisect)
        if action is not Action.FAIL and chosen_task != self.tasks["give_up"]:
            rounds = self.group.rounds if self.group is not None else []
            own = next((tasks for tasks in rounds if self.task_id in tasks), [])
            return self._skip(context, [one for one in self._siblings(own) if one not in kept])
        return self._skip(context, [one for one in self._later() if one not in kept])

    def _lets_go(self, decision: Decision) -> bool:
        """Whether the job is stopped here already: a person, or a search on its nodes, comes first."""
        return is_open(decision) or (decision.action is Action.BISECT and self.bisect is not None)

    def _siblings(self, own: list[str]) -> list[str]:
        if self.group is None:
            return sorted(self.downstream_task_ids)
        return own[own.index(self.task_id) + 1 :]


class ActingStage(DecidingStage):
    """A stage that carries a decision out. What a branch of the user's own has chosen wins over the policy's word."""

    actions: ClassVar[tuple[Action, ...]] = ()

    def _acted(self, context: Any) -> None:
        """Carry out the decision about the fault that is on its way, if there is one."""
        fault = self._decided(context)
        if fault is None or fault.incident is None:
            return
        if fault.incident.decision.action not in self.actions:
            incident = chosen(fault.incident, self.actions[0], self._why(), self.policy, now())
            fault = self.book.fault = fault.but(incident=incident)
        self._recorded(context, self._step(context, lambda watch: watch.carry_out(fault)))

    def _why(self) -> str:
        """Say why this is done although the policy has decided otherwise."""
        return f"A branch has chosen {self.task_id}."


class RestartInPlaceOperator(ActingStage):
    """Order the restart in place on every node: same allocation, same containers. Training goes on.

    If the nodes are not held any more, the policy decides anew; what it decides then is carried out by the stage after.
    """

    actions = (Action.RESTART_IN_PLACE,)

    def stage(self, context: Any) -> Any:
        """Give the order."""
        self._acted(context)
        return self._hands_on()


class GiveUpOperator(ActingStage):
    """Stop what is left of the attempt, and write down that training is stopped, and why."""

    actions = (Action.FAIL,)

    def stage(self, context: Any) -> Any:
        """Stop it."""
        self._acted(context)
        chain = self._chain()
        if chain.open is None and chain.decision is not None and not is_over(chain):
            stopped = chain.decision.but(action=Action.FAIL, reason=f"{self._why()} {chain.decision.reason}")
            chain = with_event(chain, now(), STOPPED, stopped.reason, chain.attempts - 1).but(decision=stopped)
            self.book.chain.save(chain)
            self._told(context, chain)
        self._to_the_end(context)

    def _why(self) -> str:
        if self.group is not None and self.task_id in self.group.rounds[-1]:
            return f"The group has room for {len(self.group.rounds)} attempts, and this was the last of them."
        return super()._why()
