"""Commands that find jobs: search, dead."""

import sys
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from corvo.cli import display
from corvo.cli.options import AGO, Session, client_options
from corvo.errors import ValidationError
from corvo.limits import SEARCH_PAGE_MAX
from corvo.model import PRIORITY_NAMES

_PATH = "/api/v1/jobs/search"
_HEADS = ["ID", "STATE", "QUEUE", "ATTEMPT", "CREATED"]
_SHRINKABLE = (0, 2)


class Found(msgspec.Struct):
    """The fields of a job that the table shows."""

    id: str
    state: str
    queue: str
    attempt: int
    created_at: str

    def cells(self) -> list[str]:
        """One row of the table."""
        return [self.id, self.state, self.queue, str(self.attempt), self.created_at]


class Page(msgspec.Struct):
    """One page of jobs, each as raw JSON."""

    jobs: list[msgspec.Raw]
    total: int = 0
    total_is_exact: bool = True
    has_more: bool = False
    cursor: str = ""


@click.command()
@click.option("--queue", help="Queue name; * is a wildcard.")
@click.option("--state", help="State, or a comma-separated list of states.")
@click.option("--priority", type=click.Choice(PRIORITY_NAMES), help="Priority of the jobs.")
@click.option(
    "--tag", "--tags", "tags", multiple=True, metavar="KEY=VALUE", help="Tag; repeatable."
)
@click.option("--payload-contains", metavar="TEXT", help="Substring of the payload.")
@click.option("--payload-jq", metavar="EXPRESSION", help="jq condition such as '.amount > 100'.")
@click.option("--error-contains", metavar="TEXT", help="Substring of an error text.")
@click.option("--created-after", type=AGO, help="RFC 3339 time, date, or duration ago (7d).")
@click.option("--created-before", type=AGO, help="RFC 3339 time, date, or duration ago (7d).")
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of jobs."
)
@click.option(
    "--sort",
    type=click.Choice(["created_at", "priority", "started_at", "completed_at", "attempt"]),
    help="Sort key.  [server's default: created_at]",
)
@click.option(
    "--order", type=click.Choice(["desc", "asc"]), help="Sort order.  [server's default: desc]"
)
@click.option("--all", "all_", is_flag=True, help="List every match; ignores --limit.")
@click.option("--ids", is_flag=True, help="Print one job id per line.")
@client_options
def search(session: Session, tags: tuple[str, ...], **options: Any) -> None:
    """Search jobs.

    The output is a table on a terminal and one job id per line in a pipe, as input for `corvo
    bulk`.
    """
    limit, all_, ids = (options.pop(name) for name in ("limit", "all_", "ids"))
    body = {name: value for name, value in options.items() if value is not None}
    if "state" in body:
        body["state"] = [state.strip() for state in body["state"].split(",")]
    if tags:
        body["tags"] = dict(_pair(text) for text in tags)
    _show(session, body, None if all_ else limit, ids)


@click.command()
@click.argument("queue", required=False)
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of jobs."
)
@click.option("--all", "all_", is_flag=True, help="List every dead job; ignores --limit.")
@click.option("--ids", is_flag=True, help="Print one job id per line.")
@client_options
def dead(session: Session, queue: str | None, limit: int, all_: bool, ids: bool) -> None:
    """List dead jobs of one queue or of all queues; same as search --state dead."""
    body: dict[str, Any] = {"state": ["dead"]}
    if queue is not None:
        body["queue"] = queue
    _show(session, body, None if all_ else limit, ids)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValidationError(f"tag must be key=value, not {text}")
    return key, value


def _pages(session: Session, body: dict[str, Any], limit: int | None) -> Iterator[Page]:
    """Yield pages of jobs, up to `limit` jobs in total."""
    wanted = limit
    cursor = ""
    while wanted is None or wanted > 0:
        size = SEARCH_PAGE_MAX if wanted is None else min(wanted, SEARCH_PAGE_MAX)
        asked = {**body, "limit": size, **({"cursor": cursor} if cursor else {})}
        page = session.decode(session.client.post(_PATH, asked), Page)
        yield page
        if wanted is not None:
            wanted -= len(page.jobs)
        cursor = page.cursor
        if not page.has_more or not cursor:
            return


def _show(session: Session, body: dict[str, Any], limit: int | None, ids: bool) -> None:
    pages = _pages(session, body, limit)
    if ids or not (session.as_json or sys.stdout.isatty()):
        for page in pages:
            display.lines(*(session.decode(bytes(job), Found).id for job in page.jobs))
        return
    seen = list(pages)
    jobs = [job for page in seen for job in page.jobs]
    if session.as_json:
        session.show(b"[" + b",".join(map(bytes, jobs)) + b"]")
        return
    if not jobs:
        display.lines("No jobs")
        return
    found = [session.decode(bytes(job), Found) for job in jobs]
    display.table(_HEADS, (job.cells() for job in found), _SHRINKABLE)
    total = max(seen[-1].total, len(jobs))
    display.lines(f"{len(jobs)} of {'' if seen[-1].total_is_exact else 'at least '}{total} jobs")
