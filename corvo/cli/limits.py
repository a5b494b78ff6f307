"""Commands on what a queue lets pass: throttle, groups, aging."""

import click
import msgspec

from corvo.cli import display
from corvo.cli.api import segment
from corvo.cli.options import DURATION, Session, client_options
from corvo.limits import SECOND_NS
from corvo.platform.durations import format_duration


class Group(msgspec.Struct):
    """The part of a group that the table shows."""

    group_key: str
    ready: int = 0
    active: int = 0
    waiting: int = 0
    blocked: bool = False


class Groups(msgspec.Struct):
    """A page of groups."""

    groups: list[Group]
    total: int


def words(seconds: float) -> str:
    """A duration as it would be written."""
    return format_duration(round(seconds * SECOND_NS))


@click.command()
@click.argument("queue")
@click.argument("rate", type=click.IntRange(min=1), required=False)
@click.argument("period", type=DURATION, required=False)
@click.option("--remove", is_flag=True, help="Remove the limit.")
@client_options
def throttle(
    session: Session, queue: str, rate: int | None, period: float | None, remove: bool
) -> None:
    """Limit how many jobs of a queue are handed out within any PERIOD.

    For example: corvo throttle mail 100 1m"""
    path = f"/api/v1/queues/{segment(queue)}/throttle"
    if remove:
        if rate is not None:
            raise click.UsageError("--remove takes no rate")
        answer = session.client.request("DELETE", path)
        session.show(answer, f"Queue {queue} throttle removed")
        return
    if rate is None or period is None:
        raise click.UsageError("give a rate and a period, or --remove")
    answer = session.client.post(path, {"rate": rate, "period": period})
    session.show(answer, f"Queue {queue} throttled to {rate} per {words(period)}")


@click.command()
@click.argument("queue")
@click.argument("maximum", metavar="[MAX]", type=click.IntRange(min=1), required=False)
@click.option("--remove", is_flag=True, help="Remove the limit.")
@client_options
def groups(session: Session, queue: str, maximum: int | None, remove: bool) -> None:
    """List the groups of a queue, or limit how many jobs of each run at once."""
    path = f"/api/v1/queues/{segment(queue)}/groups"
    if maximum is None and not remove:
        _list(session, path)
        return
    if maximum is not None and remove:
        raise click.UsageError("give a maximum or --remove")
    answer = session.client.post(path, {"concurrency": maximum})
    what = f"set to {maximum}" if maximum else "limit removed"
    session.show(answer, f"Queue {queue} group concurrency {what}")


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
@click.option("--off", is_flag=True, help="Switch aging off.")
@client_options
def aging(session: Session, queue: str, after: float | None, off: bool) -> None:
    """Serve normal jobs of a queue next that have waited for AFTER."""
    if (after is None) != off:
        raise click.UsageError("give a duration or --off")
    answer = session.client.post(f"/api/v1/queues/{segment(queue)}/aging", {"after": after})
    what = "off" if after is None else f"after {words(after)}"
    session.show(answer, f"Queue {queue} aging {what}")
