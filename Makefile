# The verbs of this project. Each one installs what it needs.
#   make demo            the main job: a real Airflow keeps a real training alive (ARGS=--keep, ARGS='--json FILE')
#   make test            all tests that this machine can host, those of big systems beside the others
#                        (ARGS='-m "not airflow"', ARGS='-n 0 tests/core' …; ARGS='-m thorough': what CI leaves out)
#   make kubernetes      a real Kubernetes on this machine, until Ctrl-C (root, Go and containerd; a quarter of an hour
#                        to build once)
#   make lint            ruff, mypy, import layers
#   make format          let ruff write
#   make venv            .venv with everything that demo, tests and benchmarks need
#   make lock            write requirements.lock anew

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test kubernetes lint format venv lock clean

demo: venv
	$(BIN)/python -m demo $(ARGS)

test: venv
	$(BIN)/python -m pytest -n 2 --dist loadscope $(ARGS)

kubernetes: venv
	$(BIN)/python -m tests.systems.kubernetes.command run

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

venv: $(STAMP)

$(STAMP): requirements.lock pyproject.toml demo/install.py
	$(PYTHON) demo/install.py $(VENV)
	@touch $(STAMP)

lock: venv
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.10 --generate-hashes --no-header -q -o requirements.lock

clean:
	rm -rf $(VENV) .demo .mypy_cache .ruff_cache .pytest_cache dist
