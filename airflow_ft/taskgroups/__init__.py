"""Task groups: what can be built from the public operators, ready to use. They build tasks and do nothing else."""
