"""Throughput of the Python client and of one worker process against a running server.

    PYTHONPATH=sdk/python python bench/python_client.py --server http://127.0.0.1:8080 --jobs 5000

The figures include the server and everything else on the machine; they promise nothing.
"""

import argparse
import threading
import time

from corvo_client import App, Worker


def main() -> None:
    """Enqueue jobs one by one and in batches, run them, and print jobs per second."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--server", default="http://127.0.0.1:8080")
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--concurrency", type=int, default=50)
    given = parser.parse_args()
    app = App(given.server)

    @app.task(queue="bench-functions")
    def function(n: int) -> int:
        return n

    @app.task(queue="bench-coroutines")
    async def coroutine(n: int) -> int:
        return n

    for task in (function, coroutine):
        singles = given.jobs // 10
        begun = time.perf_counter()
        for number in range(singles):
            task.enqueue(number)
        print(f"{task.queue}: enqueue {singles / (time.perf_counter() - begun):.0f}/s")
        begun = time.perf_counter()
        for start in range(0, given.jobs, 1000):
            numbers = range(start, min(start + 1000, given.jobs))
            app.client.enqueue_batch(task.item(number) for number in numbers)
        print(f"{task.queue}: enqueue_batch {given.jobs / (time.perf_counter() - begun):.0f}/s")
        run(app, task.queue, given.jobs + singles, given.concurrency)
        app.client.delete_queue(task.queue)


def run(app: App, queue: str, jobs: int, concurrency: int) -> None:
    """Run the jobs of a queue with one worker, and print its speed and CPU time."""
    worker = Worker(app, queues=[queue], concurrency=concurrency, handle_signals=False)
    begun, cpu = time.perf_counter(), time.process_time()
    thread = threading.Thread(target=worker.start)
    thread.start()
    while app.client.get_queue(queue).completed < jobs:
        time.sleep(0.02)
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    print(f"{queue}: {jobs / took:.0f} jobs/s, {cpu / jobs * 1000:.2f} ms of CPU time a job")
    worker.stop()
    thread.join()


if __name__ == "__main__":
    main()
