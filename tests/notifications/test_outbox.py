"""What people are told: any notifier of Airflow, a text for a phone, the attempt to write one's own text with."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import pytest
from airflow.providers.smtp.notifications import smtp
from airflow.sdk import BaseNotifier

from airflow_ft.attempts.record import FAULT, STOPPED, SUCCEEDED, with_event
from airflow_ft.attempts.store import ChainStore
from airflow_ft.core.chain import Attempt, Chain, Incident
from airflow_ft.core.decisions import Action, Decision
from airflow_ft.core.faults import Diagnosis, Evidence, FaultClass, Suspect
from airflow_ft.core.ledger import Ledger
from airflow_ft.core.progress import Progress
from airflow_ft.core.story import fault_sentence
from airflow_ft.notifications.outbox import TEXT_LENGTH, message, send_due
from tests.attempts.dict_store import DictStore

pytestmark = pytest.mark.story("UIO-03")
AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
LOG = logging.getLogger(__name__)


class Pager(BaseNotifier):
    """A notifier as providers write them: its text is a template."""

    template_fields: Sequence[str] = ("text",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.sent: list[str] = []

    def notify(self, context: Any) -> None:
        self.sent.append(self.text)


def incident(generation: int = 0, text: str = "A GPU on n7 fails.") -> Incident:
    root = Evidence(source="n7/output", text="CUDA error: uncorrectable ECC error", node="n7")
    diagnosis = Diagnosis(
        fault_class=FaultClass.HW_NODE, text=text, root=root, suspects=(Suspect(kind="node", name="n7"),)
    )
    decision = Decision(
        action=Action.RESUBMIT_EXCLUDING, reason="Without n7.", excluded_nodes=("n7",), ledger=Ledger(restarts=1)
    )
    return Incident(
        attempt=0,
        generation=generation,
        detected_at=AT,
        diagnosis=diagnosis,
        decision=decision,
        progress=Progress(step=17_920),
    )


def chain(text: str = "A GPU on n7 fails.", map_index: int = -1) -> tuple[Chain, ChainStore]:
    """A chain with a fault, and the attempt that it is about."""
    happened = incident(text=text)
    made = Chain(
        chain_id="c", dag_id="llama", run_id="r", task_id="pretrain", map_index=map_index, created_at=AT, max_restarts=3
    )
    made = with_event(made, AT, FAULT, fault_sentence(happened), 0).but(ledger=Ledger(restarts=1), attempts=1)
    store = ChainStore(DictStore())
    store.save_attempt(Attempt(number=0, name="c-a0", created_at=AT, incidents=(happened,), nodes=("n6", "n7")))
    store.save(made)
    return made, store


def test_the_ready_text_says_what_where_and_what_is_done() -> None:
    made, _ = chain()
    assert message(made, made.events[0])["text"] == (
        "llama.pretrain: Attempt 0 at step 17,920: HW_NODE: A GPU on n7 fails. → resubmit without n7. "
        "1 of 3 restarts used."
    )
    made, _ = chain(map_index=2)
    assert message(made, made.events[0])["text"].startswith("llama.pretrain[2]: ")


@pytest.mark.parametrize("repeated", [False, True])
def test_a_long_text_is_cut_where_nobody_misses_it(repeated: bool) -> None:
    """It still begins with what happened and ends with what is done, and what it cost."""
    made, _ = chain(text="one word after the other " * 60)
    text = message(made, made.events[0], repeated)["text"]
    assert len(text) <= TEXT_LENGTH
    assert text.startswith("llama.pretrain: Attempt 0 at step 17,920: HW_NODE: one word")
    assert "… → resubmit without n7. 1 of 3 restarts used." in text


def test_the_attempt_is_in_the_templates() -> None:
    told: list[Any] = []
    made, store = chain()
    send_due([lambda context: told.append(context["ft_attempt"])], {}, store, made, LOG)
    (attempt,) = told
    wanted = {
        "number": 0,
        "step": 17_920,
        "fault_class": "HW_NODE",
        "root_line": "CUDA error: uncorrectable ECC error",
        "suspects": ["n7"],
        "action": "RESUBMIT_EXCLUDING",
        "excluded_nodes": ["n7"],
        "restarts": 1,
        "max_restarts": 3,
        "state": "decided",
    }
    assert {key: attempt[key] for key in wanted} == wanted


@pytest.mark.parametrize(("kind", "state"), [(STOPPED, "stopped"), (SUCCEEDED, "succeeded")])
def test_an_end_without_a_fault_has_an_attempt_too(kind: str, state: str) -> None:
    told: list[Any] = []
    made, store = chain()
    ended = with_event(made.but(notified=made.events[0].id), datetime.now(timezone.utc), kind, "It ended.", 0)
    send_due([lambda context: told.append(context["ft_attempt"])], {}, store, ended, LOG)
    assert (told[0]["state"], told[0]["fault_class"], told[0]["nodes"]) == (state, None, ["n6", "n7"])


def test_a_notifier_says_each_event_although_it_renders_into_itself() -> None:
    """Airflow's own are made for one message: their templates are rendered in place, irreversibly."""
    made, store = chain()
    made = with_event(made, AT, SUCCEEDED, "Attempt 1 succeeded: Done at step 20,000.", 0)
    pager = Pager("{{ ft_event.kind }} {{ ft_attempt.number }} of {{ task }}")
    send_due([pager], {"task": "pretrain"}, store, made, LOG)
    assert pager.sent == ["fault 0 of pretrain", "succeeded 0 of pretrain"]
    assert pager.text == "{{ ft_event.kind }} {{ ft_attempt.number }} of {{ task }}", "ready for the next"


def test_airflows_mail_notifier_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    mails: list[dict[str, Any]] = []

    class Hook:
        """Where a mail leaves Airflow."""

        default_conn_name = "smtp_default"
        from_email, subject_template, html_content_template = "a@example.com", None, None

        def __init__(self, **_: Any) -> None: ...

        def __enter__(self) -> Hook:
            return self

        def __exit__(self, *_: object) -> None: ...

        def send_email_smtp(self, **mail: Any) -> None:
            mails.append(mail)

    monkeypatch.setattr(smtp, "SmtpHook", Hook)
    notifier = smtp.SmtpNotifier(
        to="oncall@example.com",
        from_email="airflow@example.com",
        subject="{{ ft_event.text }}",
        html_content="<p>{{ ft_attempt.root_line }}</p>",
    )
    made, store = chain()
    send_due([notifier], {}, store, made, LOG)
    (mail,) = mails
    assert mail["subject"].startswith("llama.pretrain: Attempt 0 at step 17,920")
    assert mail["html_content"] == "<p>CUDA error: uncorrectable ECC error</p>"


def test_a_notifier_that_fails_keeps_no_other_from_it(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    def broken(context: Any) -> None:
        raise ConnectionError("no network")

    made, store = chain()
    sent = send_due([broken, lambda context: told.append(context["ft_event"]["key"])], {}, store, made, LOG)
    assert told == [f"c/{made.events[0].id}"]
    assert sent.notified == made.events[0].id
    assert "A notifier failed; the training is not affected." in caplog.text
