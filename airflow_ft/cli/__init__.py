"""Commands for people: ``airflow ft …`` (needs Airflow's database) and ``airflow-ft …`` (needs no Airflow).

What belongs here: arguments, exit codes, and printing. What a command shows is made in ``views``.
"""

from airflow_ft.hooks import install

install()  # whoever works with backends here works with Airflow's connections
