"""The installation's own notifiers: told what no task can tell any more, a job that could not be stopped.

``[fault_tolerance] notifiers`` names functions by their import path. They are called in the api-server or the
triggerer, with ``{"ft_event": message}``.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)


def tell(message: dict[str, Any]) -> None:
    """Log the message and call every notifier. One that fails is logged, and keeps no other one from it."""
    from airflow.configuration import conf

    names = [name.strip() for name in conf.get("fault_tolerance", "notifiers", fallback="").split(",")]
    log.warning("%s", message["text"])
    for name in filter(None, names):
        try:
            _imported(name)({"ft_event": message})
        except Exception:
            log.exception("[fault_tolerance] notifiers: %s failed.", name)


def _imported(name: str) -> Callable[[Any], Any]:
    """Import ``package.module.function``, or ``package.module:function``."""
    module, _, function = name.replace(":", ".").rpartition(".")
    found: Callable[[Any], Any] = getattr(importlib.import_module(module), function)
    return found
