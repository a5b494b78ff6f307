"""Commands for queue limits: throttle, groups, aging."""

import click
import msgspec

from corvo.cli import display
from corvo.cli.api import segment
from corvo.cli.known_queues import create_option, require_queue
from corvo.cli.options import DURATION, Session, client_options
from corvo.limits import SECOND_NS
from corvo.platform.durations import format_duration


class Group(msgspec.Struct):
    """The fields of a group that the table shows."""

    group_key: str
    ready: int = 0
    active: int = 0
    waiting: int = 0
    blocked: bool = False


class Groups(msgspec.Struct):
    """A page of groups."""

    groups: list[Group]
    total: int


def duration_text(seconds: float) -> str:
    """Format a duration, such as `1m30s`."""
    return format_duration(round(seconds * SECOND_NS))


@click.command()
@click.argument("queue")
@click.argument("rate", type=click.IntRange(min=1), required=False)
@click.argument("period", type=DURATION, required=False)
@click.option("--remove", is_flag=True, help="Remove the limit.")
@create_option
@client_options
def throttle(
    session: Session,
    queue: str,
    rate: int | None,
    period: float | None,
    remove: bool,
    create: bool,
) -> None:
    """Limit the number of jobs that a queue delivers within any PERIOD.

    Example: corvo throttle mail 100 1m"""
    path = f"/api/v1/queues/{segment(queue)}/throttle"
    if remove:
        if rate is not None:
            raise click.UsageError("--remove excludes a rate")
        require_queue(session, queue, create)
        answer = session.client.request("DELETE", path)
        session.show(answer, f"Queue {queue} throttle removed")
        return
    if rate is None or period is None:
        raise click.UsageError("give a rate and a period, or --remove")
    require_queue(session, queue, create)
    answer = session.client.post(path, {"rate": rate, "period": period})
    session.show(answer, f"Queue {queue} throttled to {rate} per {duration_text(period)}")


@click.command()
@click.argument("queue")
@click.argument("maximum", metavar="[MAX]", type=click.IntRange(min=1), required=False)
@click.option("--remove", is_flag=True, help="Remove the limit.")
@create_option
@client_options
def groups(session: Session, queue: str, maximum: int | None, remove: bool, create: bool) -> None:
    """List the groups of a queue, or limit the concurrency of each group."""
    path = f"/api/v1/queues/{segment(queue)}/groups"
    if maximum is None and not remove:
        _list(session, path)
        return
    if maximum is not None and remove:
        raise click.UsageError("give a maximum or --remove")
    require_queue(session, queue, create)
    answer = session.client.post(path, {"concurrency": maximum})
    change = f"set to {maximum}" if maximum else "limit removed"
    session.show(answer, f"Queue {queue} group concurrency {change}")


def _list(session: Session, path: str) -> None:
    answer = session.client.get(f"{path}?limit=1000")
    page = session.decode(answer, Groups)
    if session.as_json or not page.groups:
        session.show(answer, "No groups")
        return
    display.table(
        ["GROUP", "READY", "ACTIVE", "WAITING", "BLOCKED"],
        [
            [
                row.group_key,
                str(row.ready),
                str(row.active),
                str(row.waiting),
                "yes" if row.blocked else "",
            ]
            for row in page.groups
        ],
    )
    if len(page.groups) < page.total:
        click.echo(f"{len(page.groups)} of {page.total} groups")


@click.command()
@click.argument("queue")
@click.argument("after", type=DURATION, required=False)
@click.option("--off", is_flag=True, help="Turn aging off.")
@create_option
@client_options
def aging(session: Session, queue: str, after: float | None, off: bool, create: bool) -> None:
    """Prefer normal jobs of a queue that have waited longer than AFTER."""
    if (after is None) != off:
        raise click.UsageError("give a duration or --off")
    require_queue(session, queue, create)
    answer = session.client.post(f"/api/v1/queues/{segment(queue)}/aging", {"after": after})
    change = "off" if after is None else f"after {duration_text(after)}"
    session.show(answer, f"Queue {queue} aging {change}")
