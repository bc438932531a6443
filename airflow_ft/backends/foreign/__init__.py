"""Jobs that somebody else has submitted: watched and judged, and left alone unless the user says ``own=True``.

``job`` is what a user writes (``ForeignJob``), ``process`` and ``objects`` find and see what it names on this machine
and on Kubernetes, ``backend`` puts them together.
"""
