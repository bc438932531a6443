"""What Airflow's providers manager wants to know about this package. Imported at every start: it imports nothing."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata."""
    return {
        "package-name": "airflow-ft",
        "name": "Fault-tolerant training",
        "description": "Long GPU training that survives its faults.",
        "integrations": [
            {
                "integration-name": "Fault-tolerant training",
                "external-doc-url": "https://pytorch.org/docs/stable/elastic/run.html",
                "tags": ["software"],
            }
        ],
        "operators": [
            {
                "integration-name": "Fault-tolerant training",
                "python-modules": [
                    "airflow_ft.operators.training",
                    "airflow_ft.operators.stages",
                    "airflow_ft.operators.preflight",
                    "airflow_ft.operators.bisect",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": "Fault-tolerant training",
                "python-modules": ["airflow_ft.sensors.progress"],
            }
        ],
        "triggers": [
            {
                "integration-name": "Fault-tolerant training",
                "python-modules": ["airflow_ft.triggers.training", "airflow_ft.triggers.progress"],
            }
        ],
        "task-decorators": [
            {"name": "ft_training", "class-name": "airflow_ft.decorators.training.ft_training_task"},
        ],
        "extra-links": [
            f"airflow_ft.operators.links.{name}Link" for name in ("RetryChain", "TrainingJob", "TrainingLog")
        ],
        "cli": ["airflow_ft.cli.definition.get_cli_commands"],
        "config": {
            "fault_tolerance": {
                "description": "Defaults of fault-tolerant training.",
                "options": {
                    "mode": {
                        "description": "The mode of the policy of tasks that give none: off, basic, advanced or full.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "advanced",
                        "default": "full",
                    },
                    "max_restarts": {
                        "description": "How many job-level restarts such a policy allows: 1 to 128, 0 is off.",
                        "version_added": "0.1.0",
                        "type": "integer",
                        "example": "5",
                        "default": "3",
                    },
                    "policy": {
                        "description": "The policy of tasks that give none: the path of a policy file, or a preset "
                        "(off, basic, advanced, full, single_node, multi_node, long_running). It goes before mode and "
                        "max_restarts.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "/etc/airflow/training-policy.yaml",
                        "default": "",
                    },
                    "triggerer_wait_seconds": {
                        "description": "How long the first attempt of a chain waits for a healthy triggerer before the "
                        "task fails and says so. A triggerer that is restarted needs 10 to 30 s.",
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": "300",
                        "default": "60",
                    },
                    "collect_seconds": {
                        "description": "How often each triggerer looks for training jobs that no task answers for any "
                        "more, and stops them. 0: never; `airflow ft reap --yes` does it by hand.",
                        "version_added": "0.1.0",
                        "type": "float",
                        "example": "60",
                        "default": "300",
                    },
                    "cordon": {
                        "description": "Cordon nodes in quarantine on Kubernetes, within the quarantine's cap, and "
                        "uncordon them when they are let go. Needs the verb patch on nodes, and collect_seconds above "
                        "0: it is done then. What others have cordoned isn't touched.",
                        "version_added": "0.1.0",
                        "type": "boolean",
                        "example": "True",
                        "default": "False",
                    },
                    "notifiers": {
                        "description": "Functions, as import paths with commas between them, that are told when the "
                        "job of a task that is over can't be stopped: no task is left that could tell it.",
                        "version_added": "0.1.0",
                        "type": "string",
                        "example": "my_company.alerts.page_on_call",
                        "default": "",
                    },
                },
            }
        },
    }
