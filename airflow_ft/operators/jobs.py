"""A training job as an argument of an operator: templates inside it, and what its secrets need before it is used."""

from __future__ import annotations

from typing import Any

from airflow_ft.backends.base import TrainingJob
from airflow_ft.operators.settings import job_from


class RendersJobs:
    """Renders every string of a job, into a copy: the user's object is never changed. For operators."""

    def render_template(self, content: Any, context: Any, jinja_env: Any = None, seen_oids: Any = None) -> Any:
        """Render templates inside the job, or in anything else as Airflow does."""

        def render(text: Any) -> Any:
            return super(RendersJobs, self).render_template(text, context, jinja_env, seen_oids)  # type: ignore[misc]

        return content.rendered(render) if isinstance(content, TrainingJob) else render(content)


def job_to_run(given: Any) -> TrainingJob:
    """Return the job, its secrets masked in the task's log from now on. Raises ``TrainingSettingsError``."""
    from airflow.sdk.log import mask_secret

    job = job_from(given)
    for secret in job.secrets():
        mask_secret(secret)
    return job
