"""Make incidents and chains smaller so that they fit into a record or an event, never by cutting JSON.

A list whose middle was cut out is no list of incidents any more. So what goes first is what a person needs least: the
evidence beyond the best, then the rules that were considered and what was put in, then long texts; each from the oldest
incident on. Who, when, which class and what was decided stay as long as there is room. The newest incident always stays
whole enough to act on, because its decision is the one that holds.
"""

from __future__ import annotations

from airflow_ft.core.chain import Chain, Debt, Incident, Notice, Outcome
from airflow_ft.core.faults import Evidence
from airflow_ft.core.ledger import Ledger, Run
from airflow_ft.core.progress import Progress
from airflow_ft.core.recovery import Recovery
from airflow_ft.core.sanitise import size_of

EVIDENCE_KEPT = 2
STACKS_KEPT = 2  # the odd one, and where the others are
TEXT_KEPT = 160  # bytes, each of these from here on: with every character outside ASCII escaped
LEAST_KEPT = 80
PATH_KEPT = 400
NAMES_KEPT = 4
EVENTS_LEFT = 10
NOTICES_LEFT = 6
OUTCOME_KEPT = 400
FAULTS_LEFT = 16  # rules look back over the faults since progress that lasts: the budgets keep those fewer than this


def slimmed(incidents: tuple[Incident, ...], limit_bytes: int) -> tuple[Incident, ...]:
    """Return the incidents, made smaller step by step until they fit; at last the oldest are left out."""
    kept = list(incidents)
    sizes = [_size(one) for one in kept]
    for make_smaller in (_fewer_evidence, _without_rules, _without_inputs, _shorter_texts, _bare, _superseded):
        count = len(kept) - 1 if make_smaller is _superseded else len(kept)
        for index in range(count):
            if sum(sizes) <= limit_bytes:
                return tuple(kept)
            kept[index] = make_smaller(kept[index])
            sizes[index] = _size(kept[index])
    while len(kept) > 1 and sum(sizes) > limit_bytes:
        del kept[0], sizes[0]
    return tuple(kept)


def slimmed_chain(chain: Chain, limit_bytes: int) -> Chain:
    """Return the chain's head, made smaller until it fits: events are told elsewhere, old faults count least."""
    for make_smaller in (_brief_events, _few_events, _without_considered, _few_faults, _fewest):
        if size_of(chain.to_record()) <= limit_bytes:
            return chain
        chain = make_smaller(chain)
    return chain


def slimmed_notices(notices: tuple[Notice, ...]) -> tuple[Notice, ...]:
    """Return the newest notices, in short."""
    return tuple(notice.but(text=_cut(notice.text)) for notice in notices[-NOTICES_LEFT:])


def slimmed_debts(debts: tuple[Debt, ...]) -> tuple[Debt, ...]:
    """Return the debts, with their reason in short."""
    return tuple(debt.but(why=_cut(debt.why)) for debt in debts)


def slimmed_progress(progress: Progress | None) -> Progress | None:
    """Return the progress without the line that says what was loaded; its number stays."""
    return None if progress is None else progress.but(loaded_text=None)


def slimmed_outcome(outcome: Outcome | None) -> Outcome | None:
    """Return the outcome in fewer words."""
    if outcome is None:
        return None
    warnings = tuple(_cut(warning) for warning in outcome.warnings[:NAMES_KEPT])
    return outcome.but(text=_cut(outcome.text, OUTCOME_KEPT), warnings=warnings)


# --- incidents ---------------------------------------------------------------------------------------------------


def _fewer_evidence(incident: Incident) -> Incident:
    told = incident.diagnosis
    return incident.but(diagnosis=told.but(evidence=told.evidence[:EVIDENCE_KEPT], stacks=told.stacks[:STACKS_KEPT]))


def _without_rules(incident: Incident) -> Incident:
    diagnosis = incident.diagnosis.but(evidence=(), stacks=())
    return incident.but(decision=incident.decision.but(considered=()), diagnosis=diagnosis)


def _without_inputs(incident: Incident) -> Incident:
    return incident.but(inputs=None)


def _shorter_texts(incident: Incident) -> Incident:
    diagnosis, decision = incident.diagnosis, incident.decision
    root: Evidence | None = diagnosis.root.but(text=_cut(diagnosis.root.text)) if diagnosis.root else None
    return incident.but(
        diagnosis=diagnosis.but(text=_cut(diagnosis.text), advice=_cut(diagnosis.advice), root=root),
        decision=decision.but(reason=_cut(decision.reason)),
    )


def _bare(incident: Incident) -> Incident:
    diagnosis = incident.diagnosis.but(root=None, advice="", suspects=incident.diagnosis.suspects[:NAMES_KEPT])
    past = incident.past
    return incident.but(
        diagnosis=diagnosis,
        progress=_numbers(incident.progress),
        recovery=_result(incident.recovery),
        past=past.but(nodes=past.nodes[:NAMES_KEPT], cause=_short(past.cause)) if past else None,
    )


def _superseded(incident: Incident) -> Incident:
    """A later decision carries the ledger and the exclusions on."""
    past = incident.past
    return incident.but(
        diagnosis=incident.diagnosis.but(text=_cut(incident.diagnosis.text, LEAST_KEPT), suspects=()),
        decision=incident.decision.but(
            reason=_cut(incident.decision.reason, LEAST_KEPT), ledger=Ledger(), excluded_nodes=()
        ),
        recovery=Recovery(state=incident.recovery.state) if incident.recovery else None,
        run=Run(),
        past=past.but(nodes=past.nodes[:2], cause=_short(past.cause, LEAST_KEPT)) if past else None,
    )


def _numbers(progress: Progress | None) -> Progress | None:
    """What the chain needs: how far it came, and where its last checkpoint is."""
    if progress is None:
        return None
    path = progress.checkpoint_path
    kept = path if path is not None and size_of(path) <= PATH_KEPT else None
    return Progress(step=progress.step, checkpoint=progress.checkpoint, checkpoint_path=kept)


def _result(recovery: Recovery | None) -> Recovery | None:
    return None if recovery is None else Recovery(state=recovery.state, text=_cut(recovery.text))


# --- chains ------------------------------------------------------------------------------------------------------


def _brief_events(chain: Chain) -> Chain:
    return chain.but(events=tuple(event.but(text=_cut(event.text)) for event in chain.events))


def _few_events(chain: Chain) -> Chain:
    return chain.but(events=chain.events[-EVENTS_LEFT:])


def _without_considered(chain: Chain) -> Chain:
    return chain.but(decision=chain.decision.but(considered=()) if chain.decision else None)


def _few_faults(chain: Chain) -> Chain:
    return chain.but(faults=chain.faults[-FAULTS_LEFT:])


def _fewest(chain: Chain) -> Chain:
    faults = tuple(fault.but(nodes=fault.nodes[:NAMES_KEPT], cause=_short(fault.cause)) for fault in chain.faults)
    decision = chain.decision.but(reason=_cut(chain.decision.reason)) if chain.decision else None
    return chain.but(faults=faults, events=chain.events[-1:], decision=decision)


# --- texts -------------------------------------------------------------------------------------------------------


def _short(cause: tuple[str, str], most: int = TEXT_KEPT) -> tuple[str, str]:
    return cause[0], _head(cause[1], most)  # without a mark: it has to stay equal to the next one's


def _cut(text: str, most: int = TEXT_KEPT) -> str:
    return text if size_of(text) <= most else f"{_head(text, most - 6)}…"


def _head(text: str, most: int) -> str:
    while size_of(text) - 2 > most:
        text = text[: max(1, min(len(text) - 1, len(text) * most // size_of(text) + 1))]
    return text


def _size(incident: Incident) -> int:
    return size_of(incident.to_record()) + 2  # and a comma
