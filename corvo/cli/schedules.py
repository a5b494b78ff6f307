"""Commands for cron schedules: schedules, with the subcommands list, create, update, show, ..."""

from collections.abc import Callable

import click
import msgspec

from corvo.cli import display
from corvo.cli.api import segment
from corvo.cli.command_line import ListingGroup
from corvo.cli.jobs import Enqueued
from corvo.cli.options import DURATION, JSON, TAGS, Session, client_options
from corvo.model import BACKOFFS, CATCH_UPS, OVERLAPS, PRIORITY_NAMES, UNIQUE_UNTIL

_PATH = "/api/v1/schedules"


class Blocker(msgspec.Struct):
    """The job that stops a schedule from enqueueing another one."""

    message: str


class Schedule(msgspec.Struct):
    """The fields of a schedule that the tables show."""

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
    blocked_by: Blocker | None = None


@click.group(cls=ListingGroup)
def schedules() -> None:
    """List, create and change cron schedules."""


@schedules.command("list")
@client_options
def list_all(session: Session) -> None:
    """List the schedules; same as `corvo schedules` without a subcommand."""
    answer = session.client.get_array(_PATH)
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
    click.option(
        "--timezone", metavar="ZONE", help="IANA time zone of --cron.  [server's default: UTC]"
    ),
    click.option("--payload", type=JSON, help="Payload of the jobs: JSON, - or @FILE."),
    click.option("--priority", type=click.Choice(PRIORITY_NAMES), help="Priority of the jobs."),
    click.option(
        "--max-retries", type=int, help="Maximum number of runs of a job.  [server's default: 3]"
    ),
    click.option(
        "--tags", "--tag", type=TAGS, metavar="TAGS", help="Tags of the jobs: a=b,c=d or JSON."
    ),
    click.option("--retry-backoff", type=click.Choice(BACKOFFS), help="How the retry delay grows."),
    click.option("--retry-base-delay", type=DURATION, help="Delay before the first retry."),
    click.option("--retry-max-delay", type=DURATION, help="Maximum retry delay."),
    click.option("--unique-key", help="Skip the run while a job in the queue holds this key."),
    click.option("--unique-period", type=DURATION, help="Maximum time that the key is held."),
    click.option(
        "--unique-until", type=click.Choice(UNIQUE_UNTIL), help="When the key is released."
    ),
    click.option(
        "--overlap",
        type=click.Choice(OVERLAPS),
        help="Whether to run while the previous job has not ended.  [server's default: allow]",
    ),
    click.option(
        "--catch-up",
        type=click.Choice(CATCH_UPS),
        help="Which missed runs to make up for after downtime.  [server's default: last]",
    ),
    click.option(
        "--catch-up-limit", type=int, help="Maximum for --catch-up all.  [server's default: 100]"
    ),
]


def _settings(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_SETTINGS):
        option(command)
    return command


@schedules.command()
@click.argument("name")
@click.option("--queue", required=True, help="Queue of the jobs.")
@click.option(
    "--cron", required=True, help='Cron expression with five fields, @daily, or "@every 5m".'
)
@_settings
@client_options
def create(session: Session, name: str, **options: object) -> None:
    """Create a schedule."""
    answer = session.client.post(_PATH, {"name": name, **_given(options)})
    schedule = session.decode(answer, Schedule)
    session.show(answer, f"Schedule {name} created, next run {schedule.next_run or 'never'}")


@schedules.command()
@click.argument("schedule")
@click.option("--name", help="New name.")
@click.option("--queue", help="Queue of the jobs.")
@click.option("--cron", help='Cron expression with five fields, @daily, or "@every 5m".')
@_settings
@client_options
def update(session: Session, schedule: str, **options: object) -> None:
    """Change the given fields of a schedule, by id or name."""
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
        *([f"  {found.blocked_by.message}"] if found.blocked_by is not None else []),
        "  next runs:" if found.enabled else "  paused; next runs if it is resumed:",
        *(f"    {at}" for at in found.next_runs),
    )


@schedules.command()
@click.argument("schedule")
@client_options
def pause(session: Session, schedule: str) -> None:
    """Pause a schedule; runs missed during the pause are not made up for."""
    answer = session.client.post(f"{_PATH}/{segment(schedule)}/pause", {})
    session.show(answer, f"Schedule {schedule} paused")


@schedules.command()
@click.argument("schedule")
@client_options
def resume(session: Session, schedule: str) -> None:
    """Resume a paused schedule with its next run."""
    answer = session.client.post(f"{_PATH}/{segment(schedule)}/resume", {})
    following = session.decode(answer, Schedule).next_run or "never"
    session.show(answer, f"Schedule {schedule} resumed, next run {following}")


@schedules.command()
@click.argument("schedule")
@client_options
def run(session: Session, schedule: str) -> None:
    """Enqueue a job of a schedule now; its next run is unchanged."""
    answer = session.client.post(f"{_PATH}/{segment(schedule)}/run", {})
    job = session.decode(answer, Enqueued)
    session.show(answer, f"Job enqueued: {job.job_id} (status: {job.status})")


@schedules.command()
@click.argument("schedule")
@client_options
def delete(session: Session, schedule: str) -> None:
    """Delete a schedule; its existing jobs stay."""
    answer = session.client.request("DELETE", f"{_PATH}/{segment(schedule)}")
    session.show(answer, f"Schedule {schedule} deleted")


def _given(options: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in options.items() if value is not None}
