"""Commands that change one job: hold, approve, reject, move, requeue, run, priority."""

import click

from corvo.cli.api import segment
from corvo.cli.jobs import Status
from corvo.cli.options import DURATION, Session, client_options
from corvo.model import HOLD_ACTIONS, PRIORITY_NAMES


def _act(session: Session, job_id: str, verb: str, body: object) -> bytes:
    return session.client.post(f"/api/v1/jobs/{segment(job_id)}/{verb}", body)


def _given(**options: object) -> dict[str, object]:
    return {name: value for name, value in options.items() if value}


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@click.option("--reason", help="Reason for the hold; shown with the job.")
@click.option("--hold-timeout", type=DURATION, help="Maximum time to wait for a decision.")
@click.option(
    "--timeout-action",
    type=click.Choice(HOLD_ACTIONS),
    help="Action when the hold times out.  [server's default: cancel]",
)
@client_options
def hold(
    session: Session,
    job_id: str,
    reason: str | None,
    hold_timeout: float | None,
    timeout_action: str | None,
) -> None:
    """Hold a job: it does not run until it is approved.

    If the job is active, its worker loses the lease."""
    body = _given(reason=reason, timeout=hold_timeout, timeout_action=timeout_action)
    session.show(_act(session, job_id, "hold", body), f"Job {job_id} held")


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@click.option("--by", help="Name of the approver; recorded in the job's events.")
@click.option("--note", help="Note; recorded in the job's events.")
@client_options
def approve(session: Session, job_id: str, by: str | None, note: str | None) -> None:
    """Approve a held job: it returns to its previous queue position."""
    answer = _act(session, job_id, "approve", _given(approved_by=by, note=note))
    session.show(answer, f"Job {job_id} approved")


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@click.option("--reason", help="Reason; becomes the error text of the job.")
@click.option("--by", help="Name of the rejecter; recorded in the job's events.")
@click.option("--revise", metavar="FEEDBACK", help="Run the job again with this feedback.")
@client_options
def reject(
    session: Session, job_id: str, reason: str | None, by: str | None, revise: str | None
) -> None:
    """Reject a held job: it becomes dead.

    With --revise the job runs again, with the feedback in its checkpoint."""
    body = _given(reason=reason, rejected_by=by)
    if revise is not None:
        body |= {"revise": True, "feedback": revise}
    session.show(_act(session, job_id, "reject", body), f"Job {job_id} rejected")


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@click.argument("queue", metavar="TARGET-QUEUE")
@click.option("--reset-attempts", is_flag=True, help="Reset the attempt count to zero.")
@client_options
def move(session: Session, job_id: str, queue: str, reset_attempts: bool) -> None:
    """Move a job to the end of another queue."""
    body = {"queue": queue, **_given(reset_attempts=reset_attempts)}
    session.show(_act(session, job_id, "move", body), f"Job moved to {queue}")


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@client_options
def requeue(session: Session, job_id: str) -> None:
    """Give a dead job one more attempt."""
    session.show(_act(session, job_id, "requeue", {}), "Job requeued")


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@client_options
def run(session: Session, job_id: str) -> None:
    """Run a scheduled or retrying job now."""
    answer = _act(session, job_id, "run", {})
    session.show(answer, f"Job {job_id}: {session.decode(answer, Status).status}")


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@click.argument("level", metavar="PRIORITY", type=click.Choice(PRIORITY_NAMES))
@client_options
def priority(session: Session, job_id: str, level: str) -> None:
    """Change the priority of a waiting job; its creation time still counts."""
    answer = _act(session, job_id, "priority", {"priority": level})
    session.show(answer, f"Job {job_id} has priority {level}")
