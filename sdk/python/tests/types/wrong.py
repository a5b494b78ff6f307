# ruff: noqa: B018
"""User code with a mistake on each line that ends with `# wrong`; type checkers find them all."""

from corvo_client import App, AsyncClient, Client, Worker, context

app = App()


@app.task(queue="emails", retries=5)
def send(to: str, n: int = 1) -> int:
    context().progres(1)  # wrong
    context().log("x", "loud")  # wrong
    return n


@app.task()
async def resize(width: int) -> str:
    return str(width)


@app.task(queu="emails")  # wrong
def misspelled_option() -> None: ...


@app.task(priority="urgent")  # wrong
def unknown_priority() -> None: ...


send.enqueue(1)  # wrong
send.enqueue("a", n="1")  # wrong
send.enqueue("a", 1, 2)  # wrong
send.enqueue(too="a")  # wrong
send.enqueue()  # wrong
send.with_options(dellay=1)  # wrong
send.with_options(delay=1).enqueue(n=1)  # wrong
send.run_inline(to=2)  # wrong
send(2)  # wrong
send.item(2)  # wrong
text: str = send.enqueue("a").wait(1)  # wrong
resize.enqueue(width="1")  # wrong
number: int = resize.enqueue(1).wait()  # wrong

client = Client()
client.enqueue(1)  # wrong
client.enqueue("q", prioritty="high")  # wrong
client.enqueue("q", priority="urgent")  # wrong
client.enqueue("q", max_retries="3")  # wrong
client.enqueue("q", chain={"step": []})  # wrong
client.enqueue_batch([{"queue": "q", "paylod": 1}])  # wrong
client.search(stat="dead")  # wrong
client.get_job("j").stat  # wrong
client.get_job()  # wrong
client.cancel_job("j", forced=True)  # wrong
client.bulk("cancel", filter={"queu": "q"})  # wrong
client.ack("j", result=1, tokken="x")  # wrong
Client(time_out=5)  # wrong
Worker(app, concurency=5)  # wrong


async def produce(awaited: AsyncClient) -> None:
    await awaited.enqueue(1)  # wrong
    (await awaited.get_job("j")).stat  # wrong
    await awaited.get_job(1)  # wrong
    await resize.enqueue_async("1")  # wrong
