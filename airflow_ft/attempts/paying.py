"""Paying debts: cancels that could not be carried out when they were due, and jobs that were held for a person."""

from __future__ import annotations

from collections.abc import Callable

from airflow_ft.attempts.letting_go import let_go
from airflow_ft.attempts.store import ChainStore
from airflow_ft.backends.base import Backend, BackendError
from airflow_ft.core.chain import Chain


async def pay_debts(
    backend: Backend, chain: Chain, store: ChainStore, grace: float, say: Callable[[str], None] = lambda text: None
) -> Chain:
    """Stop the jobs whose cancel is owed, as far as that is possible now. Returns the chain without what was paid."""
    owed = []
    for debt in chain.debts:
        try:
            left = await let_go(backend, debt.ref, grace, f"cancelling {debt.ref.name}")
            came = f"left as it is: {left}" if left else "stopped"
            say(f"{debt.ref.name}, whose cancel was owed since {debt.since:%H:%M:%S}, is {came}.")
            attempt = store.load_attempt(debt.ref.attempt)
            if attempt is not None and attempt.ref == debt.ref and not attempt.fenced:
                store.save_attempt(attempt.but(fenced=True))
        except BackendError as error:
            owed.append(debt)
            say(f"The cancel of {debt.ref.name} is still owed: {error}")
    if len(owed) < len(chain.debts):
        chain = chain.but(debts=tuple(owed))
        store.save(chain)
    return chain
