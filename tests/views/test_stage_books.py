"""The explicit form in the view: the chain is at the stage that is at work, in the end at the group's result."""

from __future__ import annotations

import json

import pytest

from airflow_ft.attempts.handing_on import OWN_BOOK
from airflow_ft.views.records import ChainNotFoundError, StoredRows, assembled
from tests.attempts.fake_cluster import Run
from tests.attempts.fake_stages import Stages, until_decided


def rows(task: Stages, state: str) -> StoredRows:
    return StoredRows("dag.train.attempt_0.watch", {OWN_BOOK: json.dumps(task.book_record)}, {}, state)


def test_a_stage_at_work_shows_the_chain() -> None:
    task = Stages([Run(last=20, code=1, words="KeyError: 'x'")], nodes=2)
    until_decided(task)
    stored = assembled(rows(task, "deferred"))
    assert stored.chain == task.chain
    assert list(stored.attempts) == task.attempts
    assert not stored.unreadable


def test_a_stage_that_is_over_says_where_the_chain_is() -> None:
    """Its book is old: it would show an attempt as running for ever."""
    task = Stages([Run(last=20, code=1, words="KeyError: 'x'")], nodes=2)
    until_decided(task)
    with pytest.raises(ChainNotFoundError, match=r"The stage dag\.train\.attempt_0\.watch is over.*`result`"):
        assembled(rows(task, "success"))
