"""Telling people: from the chain's events, not from Airflow's callbacks.

Airflow's callbacks are bound to processes and tries (``on_retry_callback`` fires for each attempt, never for a restart
in place, twice or not at all around a lost worker). Here a message belongs to a chain event and carries its id.
"""
