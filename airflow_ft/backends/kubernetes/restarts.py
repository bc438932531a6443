"""Who restarts what: the settings of a manifest that make the platform restart, found, and set to never.

Two parties that restart one job fight each other: the operator makes a pod anew while we resubmit, deletes the pods of
which the evidence is wanted, or trains from the beginning without anybody's decision. So one of them does it. By
default that is airflow_ft, and what had to be changed for it is said; ``platform_restarts`` leaves it to the platform.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from airflow_ft.backends.kubernetes.kinds import Json, Kind, Path, dotted, walk

RESTARTING = ("RestartJob", "RestartTask", "RestartPod", "RestartPartition")  # Volcano's actions
MADE = ("runPolicy", "submitterConfig")  # objects whose absence means a default that restarts


class Setting(NamedTuple):
    """A field that makes the platform restart, or remove what is still needed."""

    path: Path
    given: Any
    never: Any  # ``None``: leave it out

    @property
    def text(self) -> str:
        """Say what is changed."""
        to = "left out" if self.never is None else f"set to {self.never!r}"
        given = "not given" if self.given is None else f"{self.given!r:.80}"
        return f"{dotted(self.path)}: {given}, {to}, because airflow_ft restarts this job."


def found(kind: Kind, manifest: Json) -> list[Setting]:
    """Return every setting of the manifest by which the platform would restart the job, or hide its end."""
    settings = [
        Setting(path, walk(manifest, path), _never(walk(manifest, path), never))
        for pattern, never in kind.restarts
        for path in _expand(manifest, ("spec",), tuple(pattern.split(".")))
    ]
    if kind.pod_restart_policy:
        for template in kind.templates(manifest):
            path = (*template.path, "spec", "restartPolicy")
            settings.append(Setting(path, walk(manifest, path), "Never"))
    return [setting for setting in settings if setting.given != setting.never]


def set_to_never(manifest: Json, settings: list[Setting]) -> None:
    """Change the manifest."""
    for path, _, never in settings:
        owner: Any = manifest
        for step in path[:-1]:
            owner = owner.setdefault(step, {}) if isinstance(owner, dict) else owner[step]
        if never is None:
            owner.pop(path[-1], None)
        else:
            owner[path[-1]] = never


def _never(given: Any, never: Any) -> Any:
    if isinstance(given, list) and never is None:  # Volcano's policies: those that don't restart stay
        return [one for one in given if not _restarts(one)] or None
    return never


def _restarts(policy: Any) -> bool:
    return isinstance(policy, dict) and policy.get("action") in RESTARTING


def _expand(manifest: Json, path: Path, rest: tuple[str, ...]) -> Iterator[Path]:
    """Return the paths that a pattern with ``*`` stands for. One that leads through an absent part is left alone."""
    if not rest:
        yield path
        return
    here = walk(manifest, path)
    if rest[0] == "*":
        keys = here.keys() if isinstance(here, dict) else range(len(here)) if isinstance(here, list) else ()
        for key in keys:
            yield from _expand(manifest, (*path, key), rest[1:])
    elif len(rest) == 1 or rest[0] in MADE or (isinstance(here, dict) and rest[0] in here):
        yield from _expand(manifest, (*path, rest[0]), rest[1:])
