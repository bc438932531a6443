"""What a diagnosis needs from the outside: evidence from a backend, signature files, redaction of what will be stored.

What belongs here: asking a backend for logs and evidence within limits (``gather``), reading rule files from disk
(``signature_files``), and taking secrets out of text before it is stored (``redaction``).

What doesn't: the rules. Which line means what, who is the culprit and what the class is are functions of ``core``
(``rules``, ``findings``, ``classify``). Nothing in here decides, and nothing in here knows Airflow.
"""
