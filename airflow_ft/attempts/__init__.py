"""One attempt, in order: start, watch, conclude, record.

What belongs here: the sequence of steps of one try, whatever dies between two of them. It is driven by values
(``TryInfo``, ``WatchOrder``) and talks to two ports: a ``Backend``, and a ``Desk`` (log, XCom, clock) that Airflow's
side implements for worker and triggerer.

What doesn't: rules (``core``), how a cluster works (``backends``), Airflow (nobody in here imports it). Both the single
operator and the explicit task group call these same functions.
"""
