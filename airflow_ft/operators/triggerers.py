"""Is there a triggerer? Asked once, before the first attempt of a chain: without one a deferred task waits for ever.

Later attempts don't ask: a triggerer that restarts just then must not end a training of weeks.
"""

from __future__ import annotations

import time
from urllib.parse import urlsplit, urlunsplit

from airflow_ft.operators.settings import TrainingSettingsError

WAIT_SECONDS = 60.0  # the default of [fault_tolerance] triggerer_wait_seconds: a restart takes 10 to 30 s
ASK_EVERY_SECONDS = 3.0


class NoTriggererError(TrainingSettingsError):
    """Nothing would watch the training."""


def require_triggerer() -> None:
    """Return when a triggerer is healthy, or when Airflow can't say. Raises ``NoTriggererError``."""
    from airflow.sdk.configuration import conf

    wait = conf.getfloat("fault_tolerance", "triggerer_wait_seconds", fallback=WAIT_SECONDS)
    deadline = time.monotonic() + wait
    while (state := _triggerer_state()) not in ("healthy", "unknown"):
        if time.monotonic() > deadline:
            raise NoTriggererError(
                f"deferrable: True needs a triggerer, and none is healthy after {wait:g} s (state: {state}). "
                "Start `airflow triggerer`, or give deferrable=False to watch in the worker."
            )
        time.sleep(ASK_EVERY_SECONDS)


def _triggerer_state() -> str:
    """Return ``healthy``, ``unhealthy``, ``none`` (there never was one) or ``unknown`` (Airflow can't be asked)."""
    import httpx
    from airflow.sdk.configuration import conf

    server = conf.get("core", "execution_api_server_url", fallback="")
    if not server.startswith("http"):
        return "unknown"
    parts = urlsplit(server)
    path = parts.path.rstrip("/").removesuffix("/execution") + "/api/v2/monitor/health"
    try:
        answer = httpx.get(urlunsplit((parts.scheme, parts.netloc, path, "", "")), timeout=5.0, trust_env=False)
        state = answer.json()["triggerer"]["status"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return "unknown"
    return str(state) if state else "none"
