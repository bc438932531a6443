"""What the stages of the explicit form hand on from task to task.

Two things, because a task's state store can be written and read by that task alone:

- ``StageAttempt``: the attempt in a few plain fields. It is what people's own stages and branches get and return.
- ``Book``: the chain's records, whole, as the single operator keeps them in its store. Each stage goes on in the newest
  book of its chain (``serial`` counts the writes), and writes it as often as the single operator would.

A stage that is run again finds what it had written itself in its own store, so a crash between two lines loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field, JsonValue

from airflow_ft.attempts.ports import SeenFault
from airflow_ft.attempts.record import STOPPED, SUCCEEDED
from airflow_ft.attempts.store import ChainStore
from airflow_ft.core.chain import Attempt, Chain, ChainEvent, End
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.faults import Diagnosis
from airflow_ft.core.records import RECORD_VERSION, Record
from airflow_ft.core.sanitise import sanitise

OWN_BOOK = "ft/book"  # the key in a stage's own store
FAULT, SIGHT, SETTINGS = "stage/fault", "stage/sight", "stage/settings"
FAULT_BYTES = 64_000  # an incident with all its evidence, and its diagnosis once more
ATTEMPT_BYTES = 8_000


class StageSettings(Record):
    """What the stage that submits knows, and the later ones need."""

    version: int = RECORD_VERSION
    policy: dict[str, JsonValue] = Field(default_factory=dict)
    nodes_needed: int = 1
    gpus: int = 0
    cluster: str = ""
    progress_pattern: str | None = None
    attempt_timeout_seconds: float | None = None
    deferrable: bool = True  # whether there is a triggerer


class StageAttempt(Record):
    """One attempt as the stages see it. Small: the chain has the rest.

    ``state`` is ``running``, ``fault`` (seen, not yet decided), ``decided``, ``succeeded`` or ``stopped``. ``stage`` is
    the task that handed it on, ``choices`` the tasks that a branch may choose from, by their names.
    """

    version: int = RECORD_VERSION
    chain_id: str
    number: int
    generation: int = 0
    state: str = "running"
    nodes: tuple[str, ...] = ()
    backend: str = ""
    job: str = ""
    step: int | None = None
    checkpoint: int | None = None
    restarts: int = 0
    max_restarts: int = 0
    recovery: str | None = None
    fault_class: str | None = None
    text: str = ""
    root_line: str = ""
    suspects: tuple[str, ...] = ()
    advice: str = ""
    action: str | None = None
    reason: str = ""
    excluded_nodes: tuple[str, ...] = ()
    delay_seconds: float = 0.0
    stage: str = ""
    choices: dict[str, str] = Field(default_factory=dict)

    def to_xcom(self) -> dict[str, Any]:
        """Return every field: who branches on it should not have to know defaults."""
        value = sanitise(self.model_dump(mode="json"), ATTEMPT_BYTES)
        assert isinstance(value, dict)
        return value


class Book:
    """The chain's records on their way. A ``KeyValueStore`` for ``ChainStore``."""

    def __init__(self, record: Any, write: Callable[[dict[str, JsonValue]], None]) -> None:
        known = record if isinstance(record, dict) else {}
        values = known.get("values")
        self._values: dict[str, JsonValue] = dict(values) if isinstance(values, dict) else {}
        self.serial = serial_of(record)
        self._write = write

    @property
    def chain(self) -> ChainStore:
        """The chain's records, as the single operator reads and writes them."""
        return ChainStore(self)

    def get(self, key: str) -> JsonValue:
        """Return the stored value, or ``None``."""
        return self._values.get(key)

    def set(self, key: str, value: JsonValue) -> None:
        """Store the value; ``None`` removes it."""
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = value
        self.serial += 1
        self._write(self.to_record())

    def to_record(self) -> dict[str, JsonValue]:
        """Return the whole book."""
        return {"version": RECORD_VERSION, "serial": self.serial, "values": dict(self._values)}

    def records(self) -> dict[str, JsonValue]:
        """Return the records of the chain alone, without what only stages need."""
        return {key: value for key, value in self._values.items() if not key.startswith("stage/")}

    # --- what only stages need -----------------------------------------------------------------------------------

    @property
    def settings(self) -> StageSettings:
        """What the stage that submitted has written."""
        return StageSettings.from_record(self.get(SETTINGS) or {})

    @property
    def fault(self) -> SeenFault | None:
        """The fault of the open attempt that is on its way through the stages."""
        value = self.get(FAULT)
        fault = SeenFault.from_record(value) if value is not None else None
        chain = self.chain.load()
        return fault if fault is not None and chain is not None and fault.attempt == chain.open else None

    @fault.setter
    def fault(self, fault: SeenFault | None) -> None:
        if fault is not None or self.get(FAULT) is not None:
            self.set(FAULT, sanitise(fault.to_record(), FAULT_BYTES) if fault is not None else None)


def serial_of(record: Any) -> int:
    """Return how often a book was written; -1 for what is none."""
    serial = record.get("serial") if isinstance(record, dict) else None
    return serial if isinstance(serial, int) else -1


def is_over(chain: Chain | None) -> bool:
    """Whether nothing more will be tried: training is done, or the decision was to stop."""
    if chain is None or chain.open is not None or chain.concluded is None:
        return False
    return chain.concluded is End.SUCCEEDED or (chain.decision is not None and chain.decision.action is Action.FAIL)


def handed_on(book: Book, stage: str) -> StageAttempt:
    """Return the newest attempt as the next stage, or a person's own, sees it."""
    chain = book.chain.load()
    assert chain is not None
    attempt = book.chain.load_attempt(chain.open if chain.open is not None else chain.attempts - 1)
    fault = book.fault
    last = attempt.incidents[-1] if attempt is not None and attempt.incidents else None
    # Of an attempt that runs, the incidents are history: it was restarted in place since.
    incident = fault.incident if fault is not None else last if chain.open is None else None
    diagnosis = fault.diagnosis if fault is not None else incident.diagnosis if incident else None
    decision = incident.decision if incident else chain.decision if chain.open is None else None
    seen = _described(chain, attempt, diagnosis, decision)
    return seen.but(generation=_generation(attempt, fault), state=_state(chain, fault, decision), stage=stage)


def told_of(chain: Chain, attempt: Attempt | None, event: ChainEvent) -> StageAttempt:
    """Return the attempt that an event is about, as it was then: what a message can be made of."""
    incidents = attempt.incidents if attempt is not None else ()
    incident = next((one for one in incidents if one.detected_at == event.at), None)
    diagnosis, decision = (incident.diagnosis, incident.decision) if incident else (None, None)
    seen = _described(chain, attempt, diagnosis, decision)
    state = event.kind if event.kind in (SUCCEEDED, STOPPED) else "decided" if incident else "running"
    if incident is None:
        return seen.but(state=state)
    step = incident.progress.step if incident.progress is not None else seen.step
    return seen.but(state=state, generation=incident.generation, step=step)


def _described(
    chain: Chain, attempt: Attempt | None, diagnosis: Diagnosis | None, decision: Decision | None
) -> StageAttempt:
    seen = StageAttempt(
        chain_id=chain.chain_id,
        number=attempt.number if attempt else 0,
        restarts=decision.ledger.restarts if decision else chain.ledger.restarts,
        max_restarts=chain.max_restarts,
    )
    if attempt is not None:
        last = attempt.incidents[-1] if attempt.incidents else None
        progress, recovery = attempt.progress, (last.recovery if last and last.recovery else attempt.recovery)
        seen = seen.but(
            backend=attempt.ref.backend if attempt.ref else "",
            job=attempt.name,
            nodes=attempt.nodes,
            step=progress.step if progress else None,
            checkpoint=progress.checkpoint if progress else None,
            recovery=recovery.state if recovery else None,
        )
    if diagnosis is not None:
        seen = seen.but(
            fault_class=diagnosis.fault_class.value,
            text=diagnosis.text,
            root_line=diagnosis.root.text if diagnosis.root else "",
            suspects=tuple(one.name for one in diagnosis.suspects),
            advice=diagnosis.advice,
        )
    if decision is not None:
        seen = seen.but(
            action=decision.action.value,
            reason=decision.reason,
            excluded_nodes=decision.excluded_nodes,
            delay_seconds=decision.delay,
        )
    return seen


def _generation(attempt: Attempt | None, fault: SeenFault | None) -> int:
    if fault is not None:
        return fault.generation
    return max([one.decision.generation for one in attempt.incidents], default=0) if attempt is not None else 0


def _state(chain: Chain, fault: SeenFault | None, decision: Decision | None) -> str:
    if chain.open is None and chain.concluded is End.SUCCEEDED:
        return "succeeded"
    if is_over(chain):
        return "stopped"
    if chain.open is not None and fault is None:
        return "running"
    return "decided" if decision is not None else "fault"
