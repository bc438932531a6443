"""``@task.ft_training``: a function that says what to train, and an operator that does the rest.

What belongs here is only the bridge from a function to ``operators.training``: when the function is called, and what it
may return. How training is kept alive stands below.
"""
