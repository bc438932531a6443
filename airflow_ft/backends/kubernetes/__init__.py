"""Training on Kubernetes: PyTorchJob, TrainJob, RayJob, JobSet, MPIJob, Volcano Job and plain Job.

- ``job``: what a user writes. ``kinds``: where each kind keeps pods, replicas, status. ``building``, ``affinity``,
  ``restarts``, ``wrapping``: from the user's manifest to the object of one attempt. All of this is pure.
- ``access``, ``api``: the one way to the API server. ``watching``: one list and watch for all who look.
- ``pods``, ``agents``, ``status``, ``observation``: what is seen. ``logs``: what is printed. ``facts``: what is known.
- ``records``, ``creation``, ``ending``, ``orders``, ``telling``: what is done.
- ``selected``: pods that somebody else started, for who only looks.
- ``backend`` puts them together. ``permissions``: what an account has to be allowed.

Two rules from watching the real operators: the state is read off the *pods*, a job's conditions only confirm it; and a
job has ended when no pod of it is left, never when its object is gone.
"""
