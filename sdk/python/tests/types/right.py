"""User code that type checkers accept."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from corvo_client import App, AsyncClient, Client, Context, Delivery, Job, Worker, context

app = App("http://localhost:8080", before_enqueue=[lambda job: {**job, "tags": {"a": "b"}}])


@dataclass
class Receipt:
    to: str


@app.task(queue="emails", retries=5, unique_period="1h")
def send(to: str, n: int = 1) -> Receipt:
    context().progress(1, 2)
    return Receipt(to)


@app.task()
async def resize(width: int) -> list[int]:
    await context().checkpoint_async({"width": width})
    return [width]


@app.handler("raw")
def raw(job: Delivery, ctx: Context) -> int:
    return job.attempt if ctx.cancelled else ctx.attempt


def produce(client: Client) -> str:
    job_id: str = client.enqueue("q", {"a": 1}, delay=timedelta(minutes=1), priority="high").job_id
    client.enqueue("q", scheduled_at=datetime.now(UTC), chain={"on_failure": "broken"})
    job: Job = client.get_job(job_id)
    for found in client.search_all(queue="q", state=["dead"], created_after="2026-01-01T00:00:00Z"):
        print(found.state, found.result, job.errors)  # noqa: T201
    for event in client.subscribe(queues=["q"]):
        print(event.type)  # noqa: T201
    receipt: Receipt = send.enqueue("a", n=2).wait(5)
    again: Receipt = send.with_options(delay=5, tags={"x": 1}).enqueue(to="a").wait()
    inline: Receipt = send.run_inline("a")
    called: Receipt = send("a")
    client.enqueue_batch([send.item("a"), resize.item(1)])
    return receipt.to + again.to + inline.to + called.to


async def produce_async(client: AsyncClient) -> int:
    enqueued = await client.enqueue("q")
    job: Job = await client.get_job(enqueued.job_id)
    async for found in client.search_all(queue="q"):
        print(found.id)  # noqa: T201
    handle = await resize.enqueue_async(1)
    sizes: list[int] = await handle.wait(5)
    called: list[int] = await resize(2)
    return job.attempt + sizes[0] + called[0]


Worker(app, concurrency=5).start()
