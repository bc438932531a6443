"""Sensors: wait for what a training that somebody else started does.

What belongs here is only what Airflow wants to have in a sensor: arguments, deferral, and what an event becomes. The
looking itself is ``attempts.lookout``; the trigger stands in ``triggers``. A sensor changes nothing on a cluster.
"""

from airflow_ft.hooks import install

install()  # whoever works with backends here works with Airflow's connections
