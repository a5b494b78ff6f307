"""The command bulk: one action on many jobs."""

import sys
import time
from urllib.parse import quote

import click
import msgspec

from corvo.cli.api import Client
from corvo.cli.options import DURATION, JSON, Session, client_options, confirm
from corvo.errors import ValidationError
from corvo.model import ACTIONS, HOLD_ACTIONS, PRIORITY_NAMES

_PATH = "/api/v1/jobs/bulk"
_POLL_S = 0.2
_TARGETS = {"move": "move_to_queue", "change_priority": "priority"}
_ASK_ABOVE = 1000
_UNDO = "undo"
_UNDOABLE = ("retry", "cancel", "move", "change_priority")


class Result(msgspec.Struct):
    """Result or progress of a bulk operation."""

    affected: int = 0
    skipped: int = 0
    conflicts: int = 0
    matched: int = 0
    total: int = 0
    processed: int = 0
    status: str = ""
    bulk_operation_id: str = ""
    sample: list[str] = []


class _Named(msgspec.Struct):
    id: str = ""
    job_id: str = ""


@click.command()
@click.argument("action", type=click.Choice((*ACTIONS, _UNDO)))
@click.argument("target", required=False)
@click.option("--filter", "filter_", type=JSON, help="Act on the jobs that match a search filter.")
@click.option("--all", "all_", is_flag=True, help="Act on every job that the action applies to.")
@click.option("--to", metavar="QUEUE", help="move: target queue; same as TARGET.")
@click.option(
    "--priority",
    type=click.Choice(PRIORITY_NAMES),
    help="change_priority: new priority; same as TARGET.",
)
@click.option("--force", is_flag=True, help="cancel: do not wait for workers.")
@click.option("--reason", help="hold, reject: reason.")
@click.option("--hold-timeout", type=DURATION, help="hold: maximum time to wait for a decision.")
@click.option("--timeout-action", type=click.Choice(HOLD_ACTIONS), help="hold: action on timeout.")
@click.option("--dry-run", is_flag=True, help="Only print the number of matching jobs.")
@click.option(
    "--async",
    "background",
    is_flag=True,
    help="Run in the background of the server and show progress.",
)
@click.option(
    "--yes",
    is_flag=True,
    help=f"Do not ask for confirmation with --all, or above {_ASK_ABOVE} jobs.",
)
@client_options
def bulk(
    session: Session,
    action: str,
    target: str | None,
    filter_: msgspec.Raw | None,
    all_: bool,
    dry_run: bool,
    background: bool,
    yes: bool,
    **options: object,
) -> None:
    """Apply one action to many jobs.

    TARGET is the queue of move, or the priority of change_priority. Without --filter and --all the
    job ids are read from standard input: one id per line, one JSON job per line, or a JSON array of
    ids or jobs.

    `bulk undo ID` reverts a retry, cancel, move or change_priority of the last hour, for the jobs
    that have not changed since then.
    """
    if action == _UNDO:
        given = [filter_ is not None, all_, dry_run, *map(bool, options.values())]
        if target is None or any(given):
            raise ValidationError(
                "undo takes the id of a bulk operation, and no option except --async"
            )
        _run(session, f"/api/v1/bulk/{quote(target, safe='')}/undo", {}, background)
        return
    body: dict[str, object] = {"action": action, **_options(action, target, options)}
    if all_:
        body["all"] = True
    elif filter_ is not None:
        body["filter"] = filter_
    else:
        body["job_ids"] = read_ids(sys.stdin.buffer.read())
    if dry_run:
        answer = session.client.post(_PATH, {**body, "dry_run": True})
        found = session.decode(answer, Result)
        session.show(answer, f"Would affect: {found.matched} jobs", *found.sample)
        return
    _confirm(session, body, yes)
    result = _run(session, _PATH, body, background)
    if action in _UNDOABLE and result.affected and _interactive():
        click.echo(f"To undo: corvo bulk undo {result.bulk_operation_id}", err=True)


def _confirm(session: Session, body: dict[str, object], yes: bool) -> None:
    """Ask before the operation acts on all jobs, or on more than `_ASK_ABOVE`."""
    if yes:
        return
    action, job_ids = body["action"], body.get("job_ids")
    if "all" in body:
        confirm(f"{action} every job on this server", yes)
        return
    if isinstance(job_ids, list):
        count = len(job_ids)
    else:
        answer = session.client.post(_PATH, {**body, "dry_run": True})
        count = session.decode(answer, Result).matched
    confirm(f"{action} {count} jobs", count <= _ASK_ABOVE)


def _interactive() -> bool:
    return sys.stderr.isatty()


def _run(session: Session, path: str, body: dict[str, object], background: bool) -> Result:
    """Start a bulk operation, wait until it is done, and print its result."""
    begun = time.monotonic()
    answer = session.client.post(path, {**body, **({"async": True} if background else {})})
    result = session.decode(answer, Result)
    operation_id = result.bulk_operation_id
    if result.status == "processing":
        answer, result = _follow(session.client, result, quiet=session.as_json)
        result.bulk_operation_id = operation_id
    took_ms = (time.monotonic() - begun) * 1000
    lines = [f"Affected: {result.affected} jobs ({took_ms:.0f}ms)"]
    if result.skipped or result.conflicts:
        lines.append(f"Skipped: {result.skipped}, conflicts: {result.conflicts}")
    session.show(answer, *lines)
    return result


def _options(action: str, target: str | None, options: dict[str, object]) -> dict[str, object]:
    given = {
        "move_to_queue": options["to"],
        "priority": options["priority"],
        "force": options["force"],
        "reason": options["reason"],
        "timeout": options["hold_timeout"],
        "timeout_action": options["timeout_action"],
    }
    if target is not None:
        if action not in _TARGETS:
            raise ValidationError(f"{action} takes no target: {target}")
        given[_TARGETS[action]] = target
    return {name: value for name, value in given.items() if value}


def _follow(client: Client, accepted: Result, quiet: bool) -> tuple[bytes, Result]:
    """Show the progress until the operation is done.

    An interrupt stops only this command; the server continues."""
    path = f"/api/v1/bulk/{accepted.bulk_operation_id}"
    try:
        while True:
            answer = client.get(path)
            result = client.decode(answer, Result)
            if not quiet:
                share = 100 * result.processed // max(1, result.total)
                text = f"Progress: {result.processed}/{result.total} ({share}%)"
                click.echo(f"\r{text}", nl=False, err=True)
            if result.status not in ("queued", "running"):
                break
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        raise ValidationError(
            f"interrupted; the server continues operation {accepted.bulk_operation_id}"
        ) from None
    if not quiet:
        click.echo(err=True)
    return answer, result


def read_ids(data: bytes) -> list[str]:
    """Parse job ids in any form that other commands print."""
    text = data.strip()
    items: list[object] = []
    try:
        if text.startswith(b"["):
            items = msgspec.json.decode(text, type=list[object])
        else:
            for line in text.splitlines():
                word = line.strip()
                items.append(msgspec.json.decode(word) if word[:1] == b"{" else word.decode())
        ids = [_id(item) for item in items if item != ""]
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise ValidationError(f"cannot parse the job ids: {e}") from None
    if not ids:
        raise ValidationError("no job IDs provided (pipe from search or use --filter)")
    return ids


def _id(item: object) -> str:
    if isinstance(item, str):
        return item
    named = msgspec.convert(item, _Named)
    return named.id or named.job_id
