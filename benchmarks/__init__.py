"""One script a claim. Each measures against a peer in the same run, prints ratios, and takes ``--json FILE``."""
