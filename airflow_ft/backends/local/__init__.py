"""Training on this machine, in virtual nodes: the demo, the quick start, and most tests.

A *pool* has ``pool_nodes`` nodes ``n1, n2, …``, each with a loopback address of its own. A node of a job is one
process tree, started fully detached by one agent. What is known of a job lies in one folder and nowhere else::

    ROOT/jobs/NAME/job.json            who it is: uid, chain, attempt, digest of the spec
                   spec.json           argv, environment, working directory (0600; removed after the end)
                   placement.json      nodes, addresses, rendezvous port
                   closed              tombstone: nothing will ever be started again (cancelled, fenced or over)
                   nodes/n1/           the agent's folder, output.log, ranks/
    ROOT/pools/POOL/lock, nodes/n1/{lease, down}
    ROOT/new/                          jobs in the making; ROOT/agents/ the agent's archive

**Every step is one atomic call of the file system**, so that any number of submitters may run, die or freeze anywhere
and exactly one job exists: a job comes into being by ``rename`` (a name that is taken makes it fail), a placement and
a tombstone by ``link``, a node's start by the agent's lock. Only placement holds a lock, for milliseconds and with a
time-out. Whoever looks at a job completes what a dead submitter left undone.

What belongs here: what is true of this machine only. The modules: ``job`` (what a user writes), ``folder`` (the
files), ``creation`` (submit, find, fence), ``pool`` (nodes, leases, placement), ``launch`` (starting agents),
``survey`` (what is alive), ``observation``, ``cancel``, ``logs``, ``facts`` (evidence), ``backend`` (the protocol).

Limits: ROOT has to be on a file system of this machine, and everybody who looks has to see the same processes (worker
and triggerer in one container, or on one host).
"""
