"""Triggers: the watch of an attempt inside Airflow's triggerer.

Nothing between a trigger and its supervisor isolates triggers from each other, so these hold to strict rules: the
constructor only assigns (an exception there stops the whole triggerer), events pass the sanitiser, the task state store
is never touched (it hangs), and nothing blocks the event loop that all triggers share.
"""

from airflow_ft.hooks import install

install()  # whoever works with backends here works with Airflow's connections
