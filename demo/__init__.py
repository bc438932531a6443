"""The demo: a real Airflow, real distributed training, real faults, on one machine.

What belongs here: what is needed to show airflow_ft to a person, and the Airflow stack that the tests use as well.
Nothing here is part of the installed package, and nothing here imports from the tests.
"""
