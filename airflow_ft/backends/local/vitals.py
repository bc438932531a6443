"""The second signals of the local backend: what each rank does, read as the agent would (``agent.vitals``)."""

from __future__ import annotations

from airflow_ft.agent import vitals
from airflow_ft.backends.local import survey
from airflow_ft.backends.local.folder import Identity, JobFolder
from airflow_ft.core.vitals import RankVitals, read_ranks


def read(folder: JobFolder, identity: Identity, nodes: tuple[str, ...]) -> list[RankVitals]:
    """Return the ranks of all nodes."""
    return [
        rank for node in nodes for rank in read_ranks(node, vitals.ranks_of(survey.everything(folder, identity, node)))
    ]
