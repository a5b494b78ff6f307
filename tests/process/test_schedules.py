"""Cron schedules over HTTP, on a test clock: one job an occurrence, over jumps, stops and kills."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lib.harness import (
    Api,
    ServerProcess,
    advance,
    clock_ns,
    frozen_clock,
    nanoseconds,
    refused,
    rfc3339,
    running_server,
    set_clock,
    until,
)

SECOND_NS = 10**9
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS


def short(at_ns: int) -> str:
    """A full second as the API writes it."""
    return rfc3339(at_ns).replace(".000000000", "")


def next_hour(api: Api) -> int:
    """Set the clock to half a minute past a full hour; the time of that hour."""
    hour_ns = (clock_ns(api) // HOUR_NS + 1) * HOUR_NS
    set_clock(api, hour_ns + 30 * SECOND_NS)
    return hour_ns


def make(api: Api, name: str, **fields: Any) -> dict[str, Any]:
    """A new schedule of each minute, whose queue has its name."""
    body = {"name": name, "queue": name, "cron": "* * * * *", **fields}
    document: dict[str, Any] = api.ok("POST", "/schedules", body)
    return document


def schedule(api: Api, key: str) -> dict[str, Any]:
    document: dict[str, Any] = api.ok("GET", f"/schedules/{key}")
    return document


def settled(api: Api, name: str) -> list[str]:
    """The occurrences of all jobs of a schedule, once its next run is in the future."""
    until(
        lambda: nanoseconds(schedule(api, name)["next_run"]) > clock_ns(api),
        f"{name} does not come up to now",
    )
    occurrences = []
    while jobs := api.fetch_batch(name, lease_duration=86_400):
        occurrences += [job["schedule_slot"] for job in jobs]
    return occurrences


def test_the_life_of_a_schedule(api: Api, queue: str) -> None:
    with frozen_clock(api):
        hour_ns = next_hour(api)
        body = {"name": queue, "queue": queue, "cron": "*/15 9-17 * * mon-fri"}
        body |= {"timezone": "Europe/Berlin", "payload": {"n": 12345678901234567890}}
        body |= {"unique_key": "k", "tags": {"a": 1}, "priority": "high", "max_retries": 5}
        status, made = api.post("/schedules", body)
        assert status == 201
        assert made["id"].startswith("sched_")
        runs = made.pop("next_runs")
        assert len(runs) == 10 and runs == sorted(set(runs)) and runs[0] == made["next_run"]
        assert all(
            datetime.fromisoformat(at) > datetime.fromtimestamp(hour_ns / 1e9, UTC) for at in runs
        )
        assert made.pop("description")
        assert {**body, **made, "tags": {"a": "1"}, "priority": 1} == made
        assert (made["enabled"], made["overlap"], made["catch_up"]) == (True, "allow", "last")
        assert (made["catch_up_limit"], made["created_at"]) == (
            100,
            short(hour_ns + 30 * SECOND_NS),
        )
        assert "last_run" not in made
        assert made in api.listed("schedules")
        for key in (queue, made["id"]):
            assert schedule(api, key)["next_runs"] == runs

        changed = api.ok("PUT", f"/schedules/{queue}", {"cron": "@hourly", "unique_key": None})
        assert (changed["next_run"], changed["payload"]) == (
            short(hour_ns + HOUR_NS),
            body["payload"],
        )
        assert "unique_key" not in changed and changed["max_retries"] == 5
        assert changed["timezone"] == "Europe/Berlin"
        renamed = api.ok("PUT", f"/schedules/{made['id']}", {"name": f"{queue}/b"})
        assert schedule(api, f"{queue}%2Fb") == renamed
        refused(api.get(f"/schedules/{queue}"), 404, "NOT_FOUND")

        assert api.ok("DELETE", f"/schedules/{made['id']}") == {"status": "deleted"}
        for method in ("GET", "PUT", "DELETE"):
            refused(api.call(method, f"/schedules/{made['id']}", {}), 404, "NOT_FOUND")
        refused(api.post(f"/schedules/{made['id']}/run"), 404, "NOT_FOUND")
        advance(api, "2h")
        assert api.fetch(queue) is None


@pytest.mark.parametrize(
    ("fields", "code", "says"),
    [
        ({"cron": None}, "VALIDATION_ERROR", "cron is required"),
        ({"cron": "61 * * * *"}, "SCHEDULE_ERROR", "cron must be"),
        ({"cron": "0 0 * * * *"}, "SCHEDULE_ERROR", 'not "0 0 * * * *"'),
        ({"timezone": "Mars/Base"}, "SCHEDULE_ERROR", 'not "Mars/Base"'),
        ({"name": None}, "VALIDATION_ERROR", "name is required"),
        ({"name": "sched_1"}, "VALIDATION_ERROR", "must not begin with sched_"),
        ({"name": "x" * 129}, "VALIDATION_ERROR", "limit 128"),
        ({"queue": None}, "VALIDATION_ERROR", "queue is required"),
        ({"overlap": "never"}, "VALIDATION_ERROR", 'overlap "never" is unknown (use allow, skip)'),
        ({"catch_up": "some"}, "VALIDATION_ERROR", "use none, last, all"),
        ({"catch_up_limit": 0}, "VALIDATION_ERROR", "catch_up_limit 0 is out of range (1-1000)"),
        ({"catch_up_limit": 1001}, "VALIDATION_ERROR", "out of range (1-1000)"),
        ({"max_retries": -1}, "VALIDATION_ERROR", "max_retries -1"),
        ({"crn": "x"}, "VALIDATION_ERROR", "did you mean cron?"),
        ({"enabled": "yes"}, "VALIDATION_ERROR", "enabled"),
    ],
)
def test_what_is_refused(api: Api, queue: str, fields: Any, code: str, says: str) -> None:
    body = {"name": queue, "queue": queue, "cron": "* * * * *"}
    answer = refused(api.post("/schedules", {**body, **fields}), 400, code)
    assert says in answer["error"]
    make(api, queue, cron="@yearly")
    before = schedule(api, queue)
    answer = refused(api.call("PUT", f"/schedules/{queue}", fields), 400, code)
    assert says in answer["error"]
    assert schedule(api, queue) == before


def test_a_name_is_taken_once(api: Api, queue: str) -> None:
    made = make(api, queue, cron="@yearly")
    body = {"name": queue, "queue": "q", "cron": "@daily"}
    assert refused(api.post("/schedules", body), 409, "CONFLICT")["schedule_id"] == made["id"]
    make(api, f"{queue}-2", cron="@yearly")
    refused(api.call("PUT", f"/schedules/{queue}-2", {"name": queue}), 409, "CONFLICT")
    assert schedule(api, queue)["cron"] == "@yearly"


def test_one_job_an_occurrence_while_the_clock_goes_and_jumps(api: Api, queue: str) -> None:
    with frozen_clock(api):
        hour_ns = next_hour(api)
        made = make(api, queue, catch_up="all", payload={"a": 1})
        assert made["next_runs"] == [short(hour_ns + n * MINUTE_NS) for n in range(1, 11)]
        expected = []
        for step, occurrences in (
            ("29s", 0),
            ("1s", 1),
            ("10s", 0),
            ("50s", 1),
            ("5m", 5),
            ("1h", 60),
        ):
            advance(api, step)
            first = len(expected) + 1
            new = [short(hour_ns + (first + n) * MINUTE_NS) for n in range(occurrences)]
            assert settled(api, queue) == new, step
            expected += new
        document = schedule(api, queue)
        assert document["last_slot"] == expected[-1] and document["last_run"] >= expected[-1]
        job = api.job(document["last_job_id"])
        assert (job["schedule_id"], job["schedule_slot"]) == (made["id"], expected[-1])
        assert job["payload"] == {"a": 1}
        event = api.ok("GET", f"/jobs/{job['id']}/events")["events"][0]
        assert (event["type"], event["data"]["schedule_id"]) == ("enqueued", made["id"])


def test_an_occurrence_is_fired_in_time(api: Api, queue: str) -> None:
    """By the timer, and not because somebody moved the clock: a worker waits for it."""
    set_clock(api, (clock_ns(api) // MINUTE_NS + 1) * MINUTE_NS + 59_500_000_000)
    made = make(api, queue)
    job = api.take(queue)
    late_ns = nanoseconds(api.job(job["job_id"])["created_at"]) - nanoseconds(made["next_run"])
    assert job["schedule_slot"] == made["next_run"]
    assert 0 <= late_ns < 100_000_000


def test_pause_and_resume(api: Api, queue: str) -> None:
    with frozen_clock(api):
        hour_ns = next_hour(api)
        make(api, queue, catch_up="all")
        paused = api.ok("POST", f"/schedules/{queue}/pause")
        preview = [short(hour_ns + n * MINUTE_NS) for n in range(1, 11)]
        assert (paused["enabled"], paused["next_runs"]) == (False, preview), "if it is resumed"
        assert "next_run" not in paused
        advance(api, "10m")
        resumed = api.ok("POST", f"/schedules/{queue}/resume")
        assert (resumed["enabled"], resumed["next_run"]) == (True, short(hour_ns + 11 * MINUTE_NS))
        advance(api, "1m")
        assert settled(api, queue) == [short(hour_ns + 11 * MINUTE_NS)]


def test_run_now(api: Api, queue: str) -> None:
    with frozen_clock(api):
        hour_ns = next_hour(api)
        made = make(api, queue, cron="@hourly", overlap="skip", enabled=False)
        status, answer = api.post(f"/schedules/{queue}/run")
        assert (status, answer["status"], answer["unique_existing"]) == (201, "pending", False)
        job = api.job(answer["job_id"])
        assert job["schedule_id"] == made["id"] and "schedule_slot" not in job
        document = schedule(api, made["id"])
        assert (document["last_job_id"], document["last_run"]) == (job["id"], job["created_at"])
        conflict = refused(api.post(f"/schedules/{queue}/run"), 409, "CONFLICT")
        assert (conflict["holder_id"], conflict["holder_state"]) == (job["id"], "pending")
        resumed = api.ok("PUT", f"/schedules/{queue}", {"enabled": True})
        assert resumed["next_run"] == short(hour_ns + HOUR_NS)


def test_run_now_honours_the_unique_key(api: Api, queue: str) -> None:
    make(api, queue, cron="@yearly", unique_key="k")
    first = api.ok("POST", f"/schedules/{queue}/run")["job_id"]
    status, answer = api.post(f"/schedules/{queue}/run")
    assert (status, answer["status"], answer["job_id"]) == (200, "duplicate", first)


def restart_later(server: ServerProcess, at_ns: int) -> Api:
    """Kill the server, and start it on a clock that is set to then."""
    server.kill()
    api = server.start().api()
    api.ok("POST", "/test/clock", {"freeze": True})
    set_clock(api, at_ns)
    return api


def test_runs_missed_in_two_hours_of_downtime(data_dir: Path) -> None:
    with running_server(data_dir, "--test-clock") as server:
        api = server.api()
        api.ok("POST", "/test/clock", {"freeze": True})
        hour_ns = next_hour(api)
        for policy in ("none", "last", "all"):
            make(api, policy, catch_up=policy, catch_up_limit=10)
        last_ns = hour_ns + 120 * MINUTE_NS
        api = restart_later(server, last_ns + 30 * SECOND_NS)
        assert settled(api, "none") == []
        assert settled(api, "last") == [short(last_ns)]
        assert settled(api, "all") == [short(last_ns - n * MINUTE_NS) for n in reversed(range(10))]
        for n in range(1, 4):
            set_clock(api, last_ns + n * MINUTE_NS)
            for policy in ("none", "last", "all"):
                assert settled(api, policy) == [short(last_ns + n * MINUTE_NS)]
        # What was fired before a restart is not fired again after it.
        api = restart_later(server, last_ns + 4 * MINUTE_NS)
        for policy in ("none", "last", "all"):
            assert settled(api, policy) == [short(last_ns + 4 * MINUTE_NS)]


def test_a_weekly_night_job_over_the_end_of_summer(api: Api, queue: str) -> None:
    """02:30 in Berlin on the Sunday on which 02:30 comes twice."""
    with frozen_clock(api):
        year = datetime.fromtimestamp(clock_ns(api) / 1e9, UTC).year + 1
        sunday = max(d for d in range(25, 32) if datetime(year, 10, d).weekday() == 6)
        eve_ns = int(datetime(year, 10, sunday - 1, 12, tzinfo=UTC).timestamp()) * SECOND_NS
        set_clock(api, eve_ns)
        made = make(api, queue, cron="30 2 * * *", timezone="Europe/Berlin", catch_up="all")
        first_ns = eve_ns + 12 * HOUR_NS + 30 * MINUTE_NS
        assert made["next_runs"][:2] == [short(first_ns), short(first_ns + 25 * HOUR_NS)]
        for _ in range(48):
            advance(api, "30m")
            until(lambda: nanoseconds(schedule(api, queue)["next_run"]) > clock_ns(api), "late")
        assert settled(api, queue) == [short(first_ns)]


# ---- a schedule that cannot enqueue its job ----


@pytest.mark.parametrize("state", ["dead", "pending", "completed"])
def test_a_held_key_is_in_the_document(data_dir: Path, state: str) -> None:
    with running_server(data_dir, "--test-clock", "--no-mirror") as server:
        api = server.api()
        until = {"dead": "success", "pending": "final", "completed": "period"}[state]
        fields = {"unique_key": "k", "unique_until": until, "max_retries": 1}
        made = api.ok("POST", "/schedules", {"name": "s", "cron": "@daily", "queue": "q"} | fields)
        assert "blocked_by" not in made
        job_id = api.enqueue("q", **fields)
        if state != "pending":
            job = api.take("q")
            (api.fail if state == "dead" else api.ack)(job)
        found = api.ok("GET", "/schedules/s")["blocked_by"]
        assert (found["job_id"], found["state"]) == (job_id, state)
        assert found["unique_key"] == "k" and job_id in found["message"]
        assert ("next" in found) == (state == "dead")
        api.ok("POST", "/schedules/s/pause")
        assert api.ok("GET", "/schedules/s")["blocked_by"]["job_id"] == job_id
        api.ok("DELETE", f"/jobs/{job_id}")
        assert "blocked_by" not in api.ok("GET", "/schedules/s")
