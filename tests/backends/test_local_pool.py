"""The pool's addresses."""

from __future__ import annotations

from airflow_ft.backends.local.job import MAX_POOL_NODES
from airflow_ft.backends.local.pool import Pool, address


def test_addresses_sort_like_the_nodes_because_torchrun_ranks_nodes_by_them(tmp_path: object) -> None:
    """c10d sorts the strings: 127.0.0.10 came before 127.0.0.2, and with it node rank 1 on the tenth node."""
    addresses = [address(node) for node in Pool(str(tmp_path), "default", MAX_POOL_NODES).nodes]
    assert addresses == sorted(addresses)
    assert len(set(addresses)) == len(addresses)
    assert {len(one) for one in addresses} == {len("127.0.1.101")}
