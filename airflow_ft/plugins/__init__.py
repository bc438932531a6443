"""The plugin: pages about chains inside Airflow's web server. Imported by every component, so imports stay lazy."""

from airflow_ft.hooks import install

install()  # whoever works with backends here works with Airflow's connections
