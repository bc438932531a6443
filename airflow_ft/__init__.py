"""airflow_ft: long GPU training that survives its faults, inside Apache Airflow.

The folders, in the order of the arrows (each imports only from those below it):

- ``cli/ plugins/ operators/ triggers/ decorators/ notifications/``: Airflow's side, thin.
- ``views/``: what a person sees, read from Airflow's database for CLI and plugin.
- ``attempts/``: one attempt in order: start, watch, conclude, record.
- ``simulation/``: rehearsals of a policy. ``diagnosis/``: evidence gathering. ``backends/``: where training runs.
- ``core/``: the rules, pure. ``agent/``: the program beside training, standard library only.

This module stays empty of imports: Airflow's components import it at every start.
"""

__version__ = "0.1.0"
