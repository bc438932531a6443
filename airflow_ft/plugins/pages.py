"""Where the tabs and the page hang in Airflow's own pages. Imported by every component, so it imports nothing.

The host loads ``bundle_url``, relative to its base address, and takes the component that goes by the app's name. The
module imports the others beside it: what lies in ``static`` is what the browser runs, there is no build step.
"""

from __future__ import annotations

from typing import Any

BUNDLE = "fault-tolerance/static/main.js"
REACT_APPS: list[dict[str, Any]] = [
    {"name": "Retry chain", "destination": "task_instance", "url_route": "retry-chain", "bundle_url": BUNDLE},
    {"name": "Retry chains", "destination": "dag_run", "url_route": "retry-chains", "bundle_url": BUNDLE},
    {
        "name": "Fault tolerance",
        "destination": "nav",
        "category": "browse",
        "url_route": "fault-tolerance",
        "bundle_url": BUNDLE,
    },
]
