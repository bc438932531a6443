"""The plugin: pages about chains inside Airflow's web server. Imported by every component, so imports stay lazy."""
