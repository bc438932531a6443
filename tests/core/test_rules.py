from __future__ import annotations

import pytest

from airflow_ft.core.rules import Signature, SignatureError, compile_signatures, parse_signatures
from airflow_ft.diagnosis.signature_files import load_rules, load_signatures

GOOD = {
    "id": "mine.store", "pattern": "StoreUnavailable", "role": "root", "fault_class": "ENV_ERROR", "retry": "useful",
    "confidence": 0.9, "says": "lost its store", "advice": "Wait.",
}  # fmt: skip
WITH_PATTERN = [signature for signature in load_signatures() if signature.pattern]


@pytest.mark.row("S13")
@pytest.mark.parametrize("signature", WITH_PATTERN, ids=lambda signature: signature.id)
def test_every_signature_keeps_its_own_examples(signature: Signature) -> None:
    alone = compile_signatures([signature])
    assert signature.examples.match, "every pattern has an example"
    assert signature.examples.no_match, "every pattern has a near miss"
    for line in signature.examples.match:
        assert alone.match(line) is signature, line
        assert load_rules().match(line) == signature, line
    for line in signature.examples.no_match:
        assert alone.match(line) is None, line


def test_every_class_but_none_is_known_from_some_signature() -> None:
    classes = {signature.fault_class.value for signature in load_signatures()}
    assert classes == {
        "HW_NODE", "NET_FABRIC", "OOM_HOST", "OOM_GPU", "COMM_HANG", "APP_ERROR", "ENV_ERROR", "UNKNOWN"
    }  # fmt: skip


def test_exit_codes_have_signatures() -> None:
    rules = load_rules()
    assert [getattr(rules.for_code(code), "id", None) for code in (-9, 137, -11, 1, -15)] == [
        "process.sigkill", "process.sigkill", "process.sigsegv", None, None
    ]  # fmt: skip


@pytest.mark.parametrize("document", [None, [], {}, {"signatures": []}, {"signatures": "x"}])
def test_an_empty_set_is_an_error(document: object) -> None:
    with pytest.raises(SignatureError, match=r"mine\.yaml: no entries"):
        parse_signatures(document, "mine.yaml")
    with pytest.raises(SignatureError):
        compile_signatures([])


def test_every_mistake_is_said_with_file_and_entry() -> None:
    entries = [
        {**GOOD, "pattern": "(open"},
        {**GOOD, "id": "mine.other", "fault_class": "HARDWARE", "confidence": 3},
        {**GOOD, "id": "mine.third", "patern": "x"},
        "nonsense",
    ]
    with pytest.raises(SignatureError) as error:
        parse_signatures({"signatures": entries}, "mine.yaml")
    text = str(error.value)
    for part in ("mine.yaml: mine.store: ", "(open", "mine.other: ", "'HARDWARE' is not one of", "patern", "entry 4"):
        assert part in text


def test_an_id_given_twice_is_an_error() -> None:
    with pytest.raises(SignatureError, match="this id is taken"):
        compile_signatures(parse_signatures({"signatures": [GOOD, GOOD]}, "mine.yaml"))


@pytest.mark.row("P3")
def test_a_users_signature_wins_over_ours() -> None:
    mine = parse_signatures(
        {"signatures": [{**GOOD, "pattern": "SlowDown", "confidence": 0.1}]}, "mine.yaml", user=True
    )
    rules = compile_signatures([*load_signatures(), *mine])
    found = rules.match("io_utils.StoreUnavailable: object store answered 503 SlowDown for 10 tries")
    assert found is not None
    assert found.id == "mine.store"


def test_a_pattern_that_would_explode_elsewhere_takes_linear_time() -> None:
    rules = compile_signatures(parse_signatures({"signatures": [{**GOOD, "pattern": "(a+)+$"}]}, "mine.yaml"))
    assert rules.match("a" * 3_000 + "!") is None
