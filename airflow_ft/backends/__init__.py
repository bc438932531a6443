"""Where training runs: one folder (or module) a backend, and the protocol that all of them speak.

What belongs here: ``base`` (the protocol and its values), ``registry`` (name to module, imported on first use),
``subprocesses`` (the one way to start a process), and a folder for each backend, which can be deleted without breaking
another one.

What doesn't: decisions. A backend observes, starts and stops; it never judges. Airflow is known to nobody in here.
"""
