"""`python -m airflow_ft.agent`: the same command line as the zipapp, for development and for the tests."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
