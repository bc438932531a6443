"""The rules, pure.

What belongs here: the vocabulary as types, and every rule that can be written as a function of plain values:
classification, policy, ledger, progress, hang detection, recovery, names, sentences about a chain.

What doesn't: Airflow, client libraries, files, processes, clocks, randomness. Time and chance arrive as arguments;
the YAML files in ``signatures/`` are data that ``diagnosis/`` reads and hands in as text.
"""
