"""Commands on cron schedules: schedules, and create, show, update, pause, ... below it."""

from collections.abc import Callable

import click
import msgspec

from corvo.cli import display
from corvo.cli.api import segment
from corvo.cli.jobs import Enqueued
from corvo.cli.options import DURATION, JSON, ListingGroup, Session, client_options
from corvo.model import BACKOFFS, CATCH_UPS, OVERLAPS, PRIORITY_NAMES, UNIQUE_UNTIL

_PATH = "/api/v1/schedules"


class Schedule(msgspec.Struct):
    """The part of a schedule that the tables show."""

    name: str
    queue: str = ""
    cron: str = ""
    timezone: str = ""
    enabled: bool = True
    next_run: str = ""
    last_run: str = ""
    id: str = ""
    description: str = ""
    overlap: str = ""
    catch_up: str = ""
    next_runs: list[str] = []


@click.group(cls=ListingGroup)
def schedules() -> None:
    """List the cron schedules, or make and change them."""


@schedules.command("list")
@client_options
def list_all(session: Session) -> None:
    """List the schedules; what `corvo schedules` alone does."""
    answer = session.client.get(_PATH)
    rows = session.decode(answer, list[Schedule])
    if session.as_json or not rows:
        session.show(answer, "No schedules")
        return
    heads = ["NAME", "QUEUE", "CRON", "TIMEZONE", "NEXT RUN", "LAST RUN"]
    display.table(heads, [_row(row) for row in rows])


def _row(schedule: Schedule) -> list[str]:
    following = schedule.next_run if schedule.enabled else "paused"
    cells = [schedule.name, schedule.queue, schedule.cron, schedule.timezone, following]
    return [*cells, schedule.last_run]


_SETTINGS = [
    click.option("--timezone", metavar="ZONE", help="IANA zone of the expression (server: UTC)."),
    click.option("--payload", type=JSON, help="Payload of the jobs: JSON, - for stdin, @file."),
    click.option("--priority", type=click.Choice(PRIORITY_NAMES), help="Place among the jobs."),
    click.option("--max-retries", type=int, help="How often a job may run in total (server: 3)."),
    click.option("--tags", type=JSON, metavar="OBJECT", help="Tags of the jobs."),
    click.option("--retry-backoff", type=click.Choice(BACKOFFS), help="How the delay grows."),
    click.option("--retry-base-delay", type=DURATION, help="First delay after a failure."),
    click.option("--retry-max-delay", type=DURATION, help="Longest delay after a failure."),
    click.option("--unique-key", help="No new job while one with this key lives in the queue."),
    click.option("--unique-period", type=DURATION, help="How long the key is held at most."),
    click.option("--unique-until", type=click.Choice(UNIQUE_UNTIL), help="What frees the key."),
    click.option(
        "--overlap",
        type=click.Choice(OVERLAPS),
        help="Whether to run while the last job has not ended (server: allow).",
    ),
    click.option(
        "--catch-up",
        type=click.Choice(CATCH_UPS),
        help="Which of the runs missed while the server was down to make up for (server: last).",
    ),
    click.option("--catch-up-limit", type=int, help="At most so many with all (server: 100)."),
]


def _settings(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_SETTINGS):
        option(command)
    return command


@schedules.command()
@click.argument("name")
@click.option("--queue", required=True, help="Queue that the jobs go to.")
@click.option("--cron", required=True, help='Five fields, @daily, or "@every 5m".')
@_settings
@client_options
def create(session: Session, name: str, **options: object) -> None:
    """Make a schedule."""
    answer = session.client.post(_PATH, {"name": name, **_given(options)})
    schedule = session.decode(answer, Schedule)
    session.show(answer, f"Schedule {name} created, next run {schedule.next_run or 'never'}")


@schedules.command()
@click.argument("schedule")
@click.option("--name", help="Another name.")
@click.option("--queue", help="Queue that the jobs go to.")
@click.option("--cron", help='Five fields, @daily, or "@every 5m".')
@_settings
@client_options
def update(session: Session, schedule: str, **options: object) -> None:
    """Change what is given, by id or name."""
    body = msgspec.json.encode(_given(options))
    answer = session.client.request("PUT", f"{_PATH}/{segment(schedule)}", body)
    changed = session.decode(answer, Schedule)
    session.show(answer, f"Schedule {changed.name} updated, next run {changed.next_run or 'never'}")


@schedules.command()
@click.argument("schedule")
@client_options
def show(session: Session, schedule: str) -> None:
    """Print one schedule and its next runs, by id or name."""
    answer = session.client.get(f"{_PATH}/{segment(schedule)}")
    found = session.decode(answer, Schedule)
    session.show(
        answer,
        f"{found.name} ({found.id}) -> {found.queue}",
        f"  {found.cron} in {found.timezone}: {found.description}",
        f"  overlap {found.overlap}, catch-up {found.catch_up}",
        f"  last run {found.last_run or 'never'}",
        "  next runs:" if found.enabled else "  paused",
        *(f"    {at}" for at in found.next_runs),
    )


@schedules.command()
@click.argument("schedule")
@client_options
def pause(session: Session, schedule: str) -> None:
    """Make no more jobs; what is missed meanwhile is not made up for."""
    answer = session.client.post(f"{_PATH}/{segment(schedule)}/pause", {})
    session.show(answer, f"Schedule {schedule} paused")


@schedules.command()
@click.argument("schedule")
@client_options
def resume(session: Session, schedule: str) -> None:
    """Make jobs again, from the next run on."""
    answer = session.client.post(f"{_PATH}/{segment(schedule)}/resume", {})
    following = session.decode(answer, Schedule).next_run or "never"
    session.show(answer, f"Schedule {schedule} resumed, next run {following}")


@schedules.command()
@click.argument("schedule")
@client_options
def run(session: Session, schedule: str) -> None:
    """Make a job now; the next run stays as it is."""
    answer = session.client.post(f"{_PATH}/{segment(schedule)}/run", {})
    job = session.decode(answer, Enqueued)
    session.show(answer, f"Job enqueued: {job.job_id} (status: {job.status})")


@schedules.command()
@click.argument("schedule")
@client_options
def delete(session: Session, schedule: str) -> None:
    """Delete a schedule; the jobs it made stay."""
    answer = session.client.request("DELETE", f"{_PATH}/{segment(schedule)}")
    session.show(answer, f"Schedule {schedule} deleted")


def _given(options: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in options.items() if value is not None}
