"""Progress lines that training code may print: the most exact source of progress there is.

Fed by the user's training loop, read by the progress reader of the trigger, which finds ``ft-progress`` anywhere in a
line of the log. It is one line on stdout and nothing else: no socket, no file, no dependency, so that a training script
which calls it still runs where there is no agent at all. It never raises, because a log line is no reason to stop.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

PREFIX = "ft-progress"


def report(step: Any = None, loss: Any = None, phase: str | None = None) -> None:
    """Print one line ``ft-progress {"step":…,"loss":…,"phase":…}``; what isn't given is left out.

    A loss may be anything that ``float`` takes (a tensor of one element too). One that is not finite is printed as the
    string ``"nan"``, ``"inf"`` or ``"-inf"``, because JSON has no word for it.
    """
    # Training must not stop because a log line could not be made or written (closed stdout, an odd tensor).
    try:
        fields: dict[str, Any] = {}
        if step is not None:
            fields["step"] = int(step)
        if loss is not None:
            fields["loss"] = _finite(float(loss))
        if phase is not None:
            fields["phase"] = str(phase)[:100]
        sys.stdout.write("%s %s\n" % (PREFIX, json.dumps(fields, separators=(",", ":"))))
        sys.stdout.flush()
    except Exception:
        return


def _finite(value: float) -> Any:
    return value if math.isfinite(value) else str(value)
