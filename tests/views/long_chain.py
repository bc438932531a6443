"""A chain of many attempts, written as its tries would have written it. Nobody waits a month for a test."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from random import Random

from airflow_ft.core.chain import Attempt, AttemptState, Chain, ChainEvent, End, Incident, JobRef, Outcome, PastFault
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.faults import Diagnosis, Evidence, FaultClass, Role, Suspect
from airflow_ft.core.ledger import Ledger
from airflow_ft.core.progress import Progress
from airflow_ft.core.recovery import Recovery

CLASSES = (FaultClass.HW_NODE, FaultClass.NET_FABRIC, FaultClass.ENV_ERROR, FaultClass.OOM_HOST, FaultClass.UNKNOWN)
NODES = tuple(f"gpu-n{number:02}" for number in range(1, 17))
SECONDS_A_STEP = 5


def long_chain(attempts: int, began: datetime, *, seed: int = 7, evidence: int = 4) -> dict[str, str]:
    """Return the records of a chain of so many attempts: one fault each but the last, a burst of them on one node."""
    chance = Random(seed)
    at, step, saved = began, 0, 0
    made: list[Attempt] = []
    for number in range(attempts):
        burst = attempts // 3 <= number < attempts // 2
        hours = chance.uniform(0.05, 0.3) if burst else chance.uniform(1, 8)
        first_at = at + timedelta(seconds=chance.uniform(90, 400))
        first, start = saved + 1, step
        step = max(step, saved) + max(2, round(hours * 3600 / SECONDS_A_STEP))
        died = first_at + timedelta(seconds=(step - first) * SECONDS_A_STEP)
        checkpoint = step - step % 500
        progress = Progress(
            step=step, first_step=first, first_step_at=first_at, at=died, every=1, loss=2.0, checkpoint=checkpoint
        )
        recovery = None
        if number:
            passed = first_at + timedelta(seconds=max(0, start + 1 - first) * SECONDS_A_STEP)
            recovery = Recovery(
                state="recovered",
                died_at_step=start,
                expected_checkpoint=saved,
                loaded_checkpoint=saved,
                first_step=first,
                first_step_at=first_at,
                passed_step=start + 1,
                passed_at=passed,
                loss_before=2.0,
                loss_after=2.0,
            )
        last = number == attempts - 1
        incident = None if last else _incident(number, died, chance, burst, progress, evidence)
        made.append(_attempt(number, at, died, progress, incident, recovery))
        at, saved = died + timedelta(seconds=chance.uniform(40, 200)), checkpoint
    values = {f"ft/attempt/{one.number:04d}": json.dumps(one.to_record()) for one in made}
    return {"ft/chain": json.dumps(_head(made, began).to_record()), **values}


def _incident(number: int, died: datetime, chance: Random, burst: bool, progress: Progress, evidence: int) -> Incident:
    kind = FaultClass.NET_FABRIC if burst else chance.choice(CLASSES)
    node = NODES[3] if burst and chance.random() < 0.7 else chance.choice(NODES)
    root = Evidence(
        source=f"{node}/output",
        line=48,
        text="NCCL WARN: connection closed",
        node=node,
        rank=number % 8,
        role=Role.ROOT,
    )
    others = tuple(
        root.but(text=f"rank {n}: connection closed by remote peer", role=Role.CASCADE) for n in range(evidence)
    )
    return Incident(
        attempt=number,
        detected_at=died + timedelta(seconds=20),
        began_at=died,
        diagnosis=Diagnosis(
            fault_class=kind,
            text=f"The command on {node} lost its connection.",
            root=root,
            suspects=(Suspect(kind="node", name=node),),
            confidence=0.8,
            signature="nccl.closed",
            evidence=others,
        ),
        decision=Decision(
            action=Action.RESUBMIT,
            reason=f"The network failed; resubmitting. {number + 1} of 128 restarts used.",
            charged="restart",
            ledger=Ledger(restarts=number + 1),
        ),
        progress=progress,
        past=PastFault(cause=(kind.value, "nccl.closed"), step=progress.step, action="RESUBMIT", nodes=(node,)),
    )


def _attempt(
    number: int,
    at: datetime,
    died: datetime,
    progress: Progress,
    incident: Incident | None,
    recovery: Recovery | None,
) -> Attempt:
    name = f"pretrain-0a1b2c3d4e5f-a{number}"
    end = End.FAULT if incident else End.SUCCEEDED
    return Attempt(
        number=number,
        name=name,
        state=AttemptState.CONCLUDED,
        try_number=number + 1,
        ref=JobRef(backend="local", name=name, uid=f"u{number}", chain_id="c", attempt=number, submitted_at=at),
        nodes=NODES,
        created_at=at,
        ended_at=died + timedelta(seconds=20),
        progress=progress,
        incidents=(incident,) if incident else (),
        recovery=recovery,
        outcome=Outcome(end=end, text="The command on a node lost its connection." if incident else "All ended well."),
        fenced=True,
    )


def _head(made: list[Attempt], began: datetime) -> Chain:
    incidents = [incident for attempt in made for incident in attempt.incidents]
    events = tuple(
        ChainEvent(
            id=n,
            at=one.detected_at,
            kind="fault",
            text=f"Attempt {one.attempt}: {one.diagnosis.fault_class.value}: text",
        )
        for n, one in enumerate(incidents)
    )
    return Chain(
        chain_id="pretrain-0a1b2c3d4e5f",
        dag_id="dag",
        run_id="run",
        task_id="pretrain",
        created_at=began,
        attempts=len(made),
        concluded=End.SUCCEEDED,
        max_restarts=128,
        ledger=Ledger(restarts=len(incidents)),
        faults=tuple(one.past for one in incidents if one.past)[-64:],
        highest_step=made[-1].progress.step if made[-1].progress else None,
        events=events[-40:],
    )
