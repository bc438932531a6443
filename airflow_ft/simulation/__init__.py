"""Rehearsals: what a policy would do, before it is trusted.

``simulate`` plays a policy against a trace of node faults: a discrete-event model of one long training on a cluster,
with the real ``core.decide``. ``rehearse`` plays it over recorded chains. Both only compute: time and chance come from
a seed, files are read by the commands. What belongs here: the model and its assumptions, the numbers that come out,
their charts.
"""
