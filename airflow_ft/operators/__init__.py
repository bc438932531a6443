"""What a user writes into a DAG: operators, their retry policy, their links.

Thin: an operator turns Airflow's context into plain values, calls ``attempts``, and turns what comes back into a
deferral, a return value or an exception. What belongs here is only what Airflow wants to have in an operator.
"""

from airflow_ft.hooks import install

install()  # whoever works with backends here works with Airflow's connections
