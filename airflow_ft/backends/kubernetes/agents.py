"""What the agents say: their state, asked for inside their containers, and when it is worth asking.

An agent's line in the log says that something happened; what it is, is read from its state file by a command in the
container. So a job that prints such lines itself achieves nothing but a look, and a healthy run costs no call at all.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from airflow_ft.backends.agent_reports import whole
from airflow_ft.backends.kubernetes import wrapping
from airflow_ft.backends.kubernetes.api import Api, ApiError
from airflow_ft.backends.kubernetes.pods import PodFacts

LINE = re.compile(rb"ft-agent \S{1,64} \{")
PULSE = b'"event":"vitals"'  # said every few seconds of a healthy run: read in the log, changes no state
SHOW = wrapping.calling(["show", f"--dir={wrapping.AGENT_FOLDER}"])
SHOW_SECONDS = 15.0


@dataclass(frozen=True)
class AgentState:
    """One agent's own record (``airflow_ft.agent.state``)."""

    state: dict[str, Any]
    lives: bool
    command_lives: bool
    notes: tuple[dict[str, Any], ...] = ()
    oom_kills: int | None = None  # the kernel's count, of the container's whole life

    @property
    def generation(self) -> int:
        """Which start of the command it speaks of."""
        return whole(self.state.get("generation")) or 0


async def ask(api: Api, namespace: str, pod: PodFacts) -> AgentState | None:
    """Return what the agent in a pod says; ``None`` if there is none (yet). Raises ``UnreachableError``."""
    try:
        done = await api.execute(namespace, pod.name, pod.container, SHOW, SHOW_SECONDS)
    except ApiError:
        return None
    return read_answer(done.output) if done.code == 0 else None


def is_news(line: bytes) -> bool:
    """Whether a line of a log says that an agent's state may have changed."""
    return LINE.search(line) is not None and PULSE not in line


def read_answer(text: str) -> AgentState | None:
    """Read what ``show`` printed."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    state = found.get("state") if isinstance(found, dict) else None
    if not isinstance(state, dict):
        return None
    notes = found.get("notes")
    return AgentState(
        state=state,
        lives=found.get("lives") is True,
        command_lives=found.get("command_lives") is True,
        notes=tuple(note for note in notes if isinstance(note, dict)) if isinstance(notes, list) else (),
        oom_kills=whole(found.get("oom_kills")),
    )
