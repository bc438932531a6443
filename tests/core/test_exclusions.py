"""Exclusion never makes a retry that can't be scheduled (stories EXC-01)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ft.core.exclusions import Exclusion, exclude
from airflow_ft.core.policy import ExclusionSettings

HALF = ExclusionSettings()


def n(*numbers: int) -> tuple[str, ...]:
    return tuple(f"n{number}" for number in numbers)


@pytest.mark.story("EXC-01")
@pytest.mark.row("P4")
@pytest.mark.parametrize(
    ("newest", "earlier", "pool", "needed", "excluded", "kept"),
    [
        (n(1, 2), (), n(1, 2, 3), 2, n(1), n(2)),  # the story: at most one of three
        (n(2), n(1), n(1, 2, 3), 2, n(2), n(1)),  # the newest suspect has precedence
        (n(1), (), n(1, 2), 2, (), n(1)),  # the job needs all
        (n(1), (), n(1), 1, (), n(1)),
        (n(1, 2, 3), (), n(*range(8)), 2, n(3, 2, 1), ()),  # the most suspected comes last, like the newest
        (n(5), n(1, 2, 3, 4), n(*range(8)), 2, n(2, 3, 4, 5), n(1)),  # half of eight
        (n(2), n(1, 2), n(*range(8)), 2, n(1, 2), ()),  # suspected again: once in the list
        (n(9), n(1), n(1, 2, 3), 2, n(1, 9), ()),  # a node out of service costs nothing
        ((), n(1), (), 2, n(1), ()),  # a pool that can't be seen
        (n(6), n(1, 2, 3, 4), (), 2, n(2, 3, 4, 6), n(1)),  # ... has a small fixed cap
        ((), (), n(1, 2), 1, (), ()),
        (n(1), (), n(1, 2), 9, (), n(1)),  # the pool has become smaller than the job
    ],
)
def test_who_is_excluded(newest, earlier, pool, needed, excluded, kept) -> None:  # type: ignore[no-untyped-def]
    assert exclude(HALF, newest, earlier, pool, needed) == Exclusion(excluded, kept)


def test_a_share_is_exact() -> None:
    everybody = n(*range(100))
    assert len(exclude(ExclusionSettings(max_share=0.57), everybody, (), everybody, 1).excluded) == 57


names = st.lists(st.sampled_from(n(*range(12))), unique=True)


@given(newest=names, earlier=names, pool=names, needed=st.integers(0, 12), share=st.floats(0, 0.99))
def test_what_the_job_needs_is_always_left_and_nobody_is_forgotten(  # type: ignore[no-untyped-def]
    newest, earlier, pool, needed, share
) -> None:
    got = exclude(ExclusionSettings(max_share=share), newest, earlier, pool, needed)
    left = set(pool) - set(got.excluded)
    assert len(left) >= min(needed, len(pool))
    assert set(got.excluded) | set(got.kept) == {*newest, *earlier}
    assert not set(got.excluded) & set(got.kept)
    assert len(set(pool) & set(got.excluded)) <= share * len(pool) + 1e-6
