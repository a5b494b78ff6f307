"""JSON of what ties jobs together: batches, chains, dependencies, children."""

from typing import Any

from msgspec import Raw

from corvo import ops
from corvo._fast.codec.layouts import decode_fields
from corvo.engine.reads import Reads
from corvo.limits import MEMBERS_SHOWN_MAX
from corvo.model import ON_DEPENDENCY_FAILURE, Batch, Job
from corvo.platform.durations import format_time


def ties_document(reads: Reads, job: Job) -> dict[str, Any]:
    """The members of a job document that name other jobs."""
    document: dict[str, Any] = {}
    options = job.options
    if options is not None:
        if options.batch_id:
            document["batch_id"] = options.batch_id
        if options.chain_id:
            document["chain_id"] = options.chain_id
            document["chain_step"] = options.chain_step
        if options.chain:
            document["chain_config"] = chain_document(options.chain)
        if options.depends_on:
            document["depends_on"] = options.depends_on
            document["on_dependency_failure"] = ON_DEPENDENCY_FAILURE[options.on_dependency_failure]
        if options.blocked:
            document["blocked_by"] = reads.open_dependencies(job)
    children = reads.children(job.id, MEMBERS_SHOWN_MAX)
    if children:
        document["children"] = children
    return document


def chain_document(chain: bytes) -> dict[str, Any]:
    """A chain as it was given."""
    steps, on_failure, on_exit = decode_fields(ops.CHAIN_LAYOUT, chain)
    document: dict[str, Any] = {"steps": [follower_document(step) for step in steps]}
    if on_failure:
        document["on_failure"] = follower_document(on_failure)
    if on_exit:
        document["on_exit"] = follower_document(on_exit)
    return document


def follower_document(follower: bytes) -> dict[str, Any]:
    """A job that follows another one."""
    queue, payload = decode_fields(ops.FOLLOWER_LAYOUT, follower)
    return {"queue": queue, "payload": Raw(payload)} if payload else {"queue": queue}


def batch_document(reads: Reads, batch: Batch) -> dict[str, Any]:
    """One batch; of the jobs that have not ended, the first ones by id."""
    document: dict[str, Any] = {
        "id": batch.id,
        "total": batch.total,
        "pending": batch.pending,
        "succeeded": batch.succeeded,
        "failed": batch.failed,
    }
    if batch.on_complete:
        complete = follower_document(batch.on_complete)
        document["callback_queue"] = complete["queue"]
        if "payload" in complete:
            document["callback_payload"] = complete["payload"]
    for name, follower in (
        ("on_success", batch.on_success),
        ("on_complete", batch.on_complete),
        ("on_death", batch.on_death),
    ):
        if follower:
            document[name] = follower_document(follower)
    document["pending_jobs"] = reads.batch_members(batch.id, MEMBERS_SHOWN_MAX)
    document["created_at"] = format_time(batch.created_ns)
    if batch.finished_ns:
        document["finished_at"] = format_time(batch.finished_ns)
    return document
