"""Which backend has which name. Imported on first use: naming ``slurm`` never imports the Kubernetes client.

Others can add backends with the entry point group ``airflow_ft.backends`` (name = ``module:factory``). They add to the
built-in ones and can't replace them; a broken one is only noticed by who asks for it.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import cast

from airflow_ft.backends.base import Backend

BUILT_IN = {
    "local": "airflow_ft.backends.local.backend:create_backend",
    "kubernetes": "airflow_ft.backends.kubernetes.backend:create_backend",
    "foreign": "airflow_ft.backends.foreign.backend:create_backend",
}


class UnknownBackendError(LookupError):
    """No backend of this name."""


def create_backend(name: str) -> Backend:
    """Return the backend called ``name``. Raises ``UnknownBackendError`` that lists the known ones."""
    plugged = {entry.name: entry.value for entry in entry_points(group="airflow_ft.backends")}
    target = {**plugged, **BUILT_IN}.get(name)
    if target is None:
        known = ", ".join(sorted({**plugged, **BUILT_IN}))
        raise UnknownBackendError(f"backend: {name!r} is not known. Known are: {known}.")
    module, factory = target.split(":")
    return cast("Backend", getattr(import_module(module), factory)())
