"""Airflow's connections for backends: who knows no Airflow is handed plain values by these.

What belongs here: looking connections up, in whatever process asks (worker, triggerer, web server, command line).
"""

from airflow_ft.hooks.connections import install

__all__ = ["install"]
