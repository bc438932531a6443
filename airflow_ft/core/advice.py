"""What to do about each fault class, in two sentences for a tired person. Signatures say it better where they can."""

from __future__ import annotations

ADVICE = {
    "HW_NODE": "The machine or its GPU is the suspect. Run without that node, and have it checked (dmesg, dcgmi diag, "
    "nvidia-smi -q) before it is used again.",
    "NET_FABRIC": "The network between nodes is the suspect. Check the ports and links that the line names, and try "
    "again: many of these pass.",
    "OOM_HOST": "The node's main memory (or /dev/shm) ran out. Give the job more memory, or use fewer data workers and "
    "smaller caches.",
    "OOM_GPU": "Running again doesn't cure it. Use a smaller batch or shorter sequences, shard or checkpoint "
    "activations, and see that no other process holds memory on the GPU.",
    "COMM_HANG": "Not all ranks came to the same collective operation. Look for the rank that stayed behind, and at "
    "what it did instead (py-spy dump).",
    "APP_ERROR": "The program or its settings are wrong: it would fail again. Read the traceback above the line and "
    "mend the program, its arguments or its data.",
    "ENV_ERROR": "The surroundings of the program are wrong: image, packages, disk, rights or a service outside. Mend "
    "what the line names, then start again.",
    "UNKNOWN": "What was found names no cause. Read the end of each rank's log, and the node's kernel log.",
}
