"""Commands for what people do to a job: hold, approve, reject, move, requeue, run, priority."""

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
@click.option("--reason", help="Why; shown with the job.")
@click.option("--hold-timeout", type=DURATION, help="How long to wait for a decision.")
@click.option(
    "--timeout-action",
    type=click.Choice(HOLD_ACTIONS),
    help="What happens when nobody decides in time.  [server's default: cancel]",
)
@client_options
def hold(
    session: Session,
    job_id: str,
    reason: str | None,
    hold_timeout: float | None,
    timeout_action: str | None,
) -> None:
    """Keep a job from running until it is approved.

    The worker of an active job finds that it has lost it."""
    body = _given(reason=reason, timeout=hold_timeout, timeout_action=timeout_action)
    session.show(_act(session, job_id, "hold", body), f"Job {job_id} held")


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@click.option("--by", help="Who approves; kept in the job's events.")
@click.option("--note", help="Kept in the job's events.")
@client_options
def approve(session: Session, job_id: str, by: str | None, note: str | None) -> None:
    """Let a held job run, in the place it had."""
    answer = _act(session, job_id, "approve", _given(approved_by=by, note=note))
    session.show(answer, f"Job {job_id} approved")


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@click.option("--reason", help="Why; becomes the error of the job.")
@click.option("--by", help="Who rejects; kept in the job's events.")
@click.option("--revise", metavar="FEEDBACK", help="Let it run again, and tell the worker this.")
@client_options
def reject(
    session: Session, job_id: str, reason: str | None, by: str | None, revise: str | None
) -> None:
    """Do not let a held job run: it is dead.

    With --revise it runs again, with the feedback in its checkpoint."""
    body = _given(reason=reason, rejected_by=by)
    if revise is not None:
        body |= {"revise": True, "feedback": revise}
    session.show(_act(session, job_id, "reject", body), f"Job {job_id} rejected")


@click.command()
@click.argument("job_id", metavar="JOB-ID")
@click.argument("queue", metavar="TARGET-QUEUE")
@click.option("--reset-attempts", is_flag=True, help="Begin with the first attempt again.")
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
    """Change the priority of a job that waits; its age still counts."""
    answer = _act(session, job_id, "priority", {"priority": level})
    session.show(answer, f"Job {job_id} has priority {level}")
