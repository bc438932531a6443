"""The named points of ``airflow_ft.attempts.crash_points``: all of them, as the source has them, and who arms them."""

from __future__ import annotations

import ast
from pathlib import Path

import airflow_ft

# In the task's process, for an attempt that ends well or not.
WORKER = (
    "execute.begin",
    "start.before_chain",
    "start.after_chain",
    "start.before_intent",
    "start.between_intents",
    "start.after_intent",
    "start.before_submit",
    "start.after_submit",
    "start.after_id",
    "execute.before_defer",
    "complete.begin",
    "record.before_attempt",
    "record.between",
    "record.after",
    "notify.before_send",
    "notify.after_send",
    "complete.before_raise",
)
# In the task's process, once a person has cleared a task that was deferred.
FENCE = ("start.before_fence", "start.after_fence")
# In the task's process, once a watch has news of an attempt that goes on.
NEWS = ("interim.before_attempt", "interim.between")
# In the task's process, when a person is asked, and once the answer (or its default) has come.
ASK = ("ask.before_detail", "ask.before_park", "answer.begin", "answer.between", "answer.after")
# In the triggerer, for an attempt that is restarted in place and ends well.
TRIGGER = (
    "trigger.begin",
    "watch.looked",
    "conclude.gathered",
    "conclude.diagnosed",
    "conclude.decided",
    "conclude.written",
    "conclude.ordered",
    "conclude.before_tidy",
    "trigger.before_event",
)
# In the triggerer, for an attempt that is stopped.
STOP = ("conclude.before_stop", "conclude.written", "conclude.after_stop")
# Those of both at which a decision is half carried out.
DECIDED = ("conclude.decided", "conclude.written", "conclude.ordered", "conclude.before_stop")
# In the triggerer, once a person has ended a task.
KILL = ("trigger.kill",)


def named_in_source() -> set[str]:
    """Every point that the package reaches."""
    found = set()
    for source in Path(airflow_ft.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "reach":
                found |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    return found
