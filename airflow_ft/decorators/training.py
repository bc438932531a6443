"""``@task.ft_training``: the decorated function returns a training job, or the fields of one.

The function is called at the beginning of every try: what it returns may depend on what is known only then (an
upstream's XCom, the newest checkpoint). Within one attempt it has to return the same again; a job that is running
already is adopted as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, determine_kwargs, task_decorator_factory

from airflow_ft.backends.base import TrainingJob
from airflow_ft.core.settings import SettingsError
from airflow_ft.operators.retry_policy import FaultToleranceRetryPolicy
from airflow_ft.operators.settings import LOST_TRY_DELAY, RETRIES, TrainingSettingsError, refuse_retries
from airflow_ft.operators.training import FaultTolerantTrainingOperator

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context


class JobOfFunction(TrainingJob):
    """Stands in for the job until the function was called: while a DAG is parsed, nobody knows it."""

    backend: ClassVar[str] = "decided by the function"


class TrainingDecoratedOperator(DecoratedOperator, FaultTolerantTrainingOperator):
    """The operator behind ``@task.ft_training``.

    :param python_callable: the function. Returns a ``TrainingJob``; with ``job`` also a dictionary of its fields.
    :param job: the class of the job (``LocalJob``, …) when the function returns fields.
    """

    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *FaultTolerantTrainingOperator.template_fields,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **FaultTolerantTrainingOperator.template_fields_renderers,
    }
    custom_operator_name = "@task.ft_training"
    overwrite_rtif_after_execution = True  # the page "Rendered templates" shows the job that the function returned

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        job: type[TrainingJob] | None = None,
        **kwargs: Any,
    ) -> None:
        if job is not None and not (isinstance(job, type) and issubclass(job, TrainingJob)):
            raise TrainingSettingsError(
                f"job: {job!r} is not allowed. Give the class of the job (LocalJob, …) whose fields the function "
                "returns, or nothing if it returns a whole job."
            )
        self.job_class = job
        super().__init__(
            python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, job=JobOfFunction(), **kwargs
        )

    def execute(self, context: Context) -> Any:
        """Ask the function for the job; then as ``FaultTolerantTrainingOperator``."""
        self.job = self._asked(context)
        return FaultTolerantTrainingOperator.execute(self, context)

    def execute_complete(self, context: Context, event: dict[str, Any] | None = None) -> Any:
        """Take the trigger's event. The function is asked again: its job's secrets have to be known for masking."""
        self.job = self._asked(context)
        return super().execute_complete(context, event)

    def _asked(self, context: Context) -> TrainingJob:
        known: Any = {**context, **self.op_kwargs}
        answer = self.python_callable(*self.op_args, **determine_kwargs(self.python_callable, self.op_args, known))
        if isinstance(answer, dict) and self.job_class is not None:
            try:
                answer = self.job_class(**answer)
            except SettingsError as error:
                raise TrainingSettingsError(
                    f"What {self._name()} returned is no {self.job_class.__name__}: {error}"
                ) from None
        if not isinstance(answer, TrainingJob):
            fields = f", or a dictionary of {self.job_class.__name__}'s fields" if self.job_class else ""
            raise TrainingSettingsError(
                f"{self._name()} returned {answer!r:.200}. It has to return a training job, for example "
                f"LocalJob(command=[…]){fields}."
            )
        rendered: TrainingJob = self.render_template(answer, context)
        return rendered

    def _name(self) -> str:
        return f"{getattr(self.python_callable, '__name__', 'the function')}()"


def ft_training_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a function a fault-tolerant training: ``@task.ft_training(policy=…)``.

    Takes the arguments of ``FaultTolerantTrainingOperator``, but for ``job``: here that is the job's class, when the
    function returns the fields of one.
    """
    refuse_retries(kwargs)
    # A mapped decorated task is scheduled without its operator's __init__ and partial(): they have to be given here.
    kwargs.update(retries=RETRIES, retry_policy=FaultToleranceRetryPolicy())
    kwargs.setdefault("retry_delay", LOST_TRY_DELAY)
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=TrainingDecoratedOperator, **kwargs
    )
