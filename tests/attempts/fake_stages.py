"""The stages of the explicit form, without Airflow: what their operators do, in order, each a process of its own."""

from __future__ import annotations

import json
from typing import Any

from airflow_ft.attempts.handing_on import SIGHT, Book, is_over
from airflow_ft.attempts.ports import Conclusion, WatchOrder
from airflow_ft.attempts.record import write_conclusion, write_interim
from airflow_ft.attempts.reports import STATE_KEY
from airflow_ft.attempts.staged import StageWatch
from airflow_ft.attempts.store import ChainStore
from airflow_ft.core.chain import End
from tests.attempts.fake_task import RULES, FakeDesk, Task


class Stages(Task):
    """The same task as the stages of the explicit form; each stage is a process of its own."""

    book_record: Any = None
    between_seconds = 0.0  # what Airflow takes from one stage to the next

    @property
    def book(self) -> Book:
        """The book as the next stage reads it: it went through JSON."""
        return Book(json.loads(json.dumps(self.book_record)), self._write)

    def _write(self, record: Any) -> None:
        self.book_record = json.loads(json.dumps(record, allow_nan=False))

    def store(self) -> ChainStore:
        return self.book.chain

    def stage_watch(self, **more: Any) -> StageWatch:
        """A stage's watch: its XComs have what the stage before has seen."""
        chain = self.chain
        assert chain.open is not None
        order = self._order(chain, self.attempts[chain.open]).but(staged=True, **more)
        sight = self.book.get(SIGHT)
        self.xcoms = {STATE_KEY: json.dumps(sight)} if sight is not None else {}
        desk = FakeDesk(self, self.xcoms)
        return StageWatch(WatchOrder.from_record(order.to_record()), self.policy, self.backend, desk, RULES)

    def take_sight(self) -> None:
        if STATE_KEY in self.xcoms:
            self.book.set(SIGHT, json.loads(self.xcoms[STATE_KEY]))

    def record(self, conclusion: Conclusion) -> None:
        conclusion = Conclusion.from_record(json.loads(json.dumps(conclusion.to_record())))
        book = self.book
        attempt = book.chain.load_attempt(conclusion.attempt)
        assert attempt is not None
        if conclusion.interim:
            write_interim(book.chain, self.chain, attempt, conclusion)
        else:
            write_conclusion(book.chain, self.chain, attempt, conclusion)
            book.set(SIGHT, None)
        book.fault = conclusion.fault

    def stage_one(self) -> None:
        """The watch of one sub-group, and what follows a fault."""
        chain = self.chain
        if chain.faults or any(attempt.incidents for attempt in self.attempts[-1:]):
            self.record(self.run(self.stage_watch(until_recovered=True).watch()))
            self.take_sight()
        if self.chain.open is not None and self.book.fault is None:
            self.record(self.run(self.stage_watch().watch()))
            self.take_sight()
        for step in ("diagnose", "decide"):
            self.wait(self.between_seconds)
            fault = self.book.fault
            if fault is not None:
                self.book.fault = self.run(getattr(self.stage_watch(), step)(fault))
        self.act()

    def act(self) -> None:
        fault = self.book.fault
        if fault is not None:
            self.record(self.run(self.stage_watch().carry_out(fault)))
            self.take_sight()

    def run_stages(self, most: int = 10) -> str:
        self.begin_try()
        for _ in range(most):
            if self.book.chain.load() is None or self.chain.open is None:
                self.run(self.starter().start())
            self.stage_one()
            if is_over(self.chain):
                return "success" if self.chain.concluded is End.SUCCEEDED else "failed"
            if self.chain.open is None and self.chain.decision is not None:
                self.wait(self.chain.decision.delay)
        raise AssertionError(f"no end after {most} rounds: {self.log[-20:]}")


def until_decided(task: Stages) -> Any:
    task.begin_try()
    task.run(task.starter().start())
    acting, task.act = task.act, lambda: None  # type: ignore[method-assign]
    task.stage_one()
    task.act = acting  # type: ignore[method-assign]
    return task.book_record
