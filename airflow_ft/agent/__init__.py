"""The program beside the training command, on every node of the job.

It starts the command, reaps it, keeps the node after an abnormal end until somebody decides, and takes numbered orders
(restart in place, release, dump stacks). It is shipped into the user's training image as one zipapp, so what belongs
here is bound to two things: the standard library alone, in the syntax of Python 3.8, and no import of anything of
airflow_ft outside this folder (relative imports only). What needs Airflow, a client library or a decision of its own
goes to `backends/`, `diagnosis/` or `core/` instead.

Training code may use one function of it: ``from airflow_ft.agent import report``.
"""

from .reporting import report

__all__ = ["report"]
