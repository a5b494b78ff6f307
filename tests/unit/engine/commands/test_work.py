"""The commands of workers: checks of acks before they are proposed."""

import json
import logging

import pytest
from lib.fsm_driver import Driver
from lib.proposing import CLOCK, CONFIG, NO_OUTPUT, PIPELINE

from corvo.engine.commands.inputs import AckBody
from corvo.engine.commands.work import WorkCommands
from corvo.engine.service import Service
from corvo.limits import RESULT_SCHEMA_PARTS_MAX, SECOND_NS
from corvo.platform.clock import TestClock
from corvo.platform.ids import JobIds

# Enqueues refuse this schema; an earlier version may have stored it with a job.
REFUSED = json.dumps({"allOf": [{}] * RESULT_SCHEMA_PARTS_MAX, "type": "integer"}).encode()


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def commands(driver: Driver) -> WorkCommands:
    service = Service(CONFIG, CLOCK, driver.machine, PIPELINE, JobIds(CLOCK.random_bytes))
    return WorkCommands(service, NO_OUTPUT)


def test_a_result_is_accepted_when_its_stored_schema_is_refused(
    driver: Driver, commands: WorkCommands, caplog: pytest.LogCaptureFixture
) -> None:
    driver.enqueue("job_1", result_schema=REFUSED)
    token = driver.take().token
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            values = commands.ack_values("job_1", AckBody(lease_token=token, result=b'"text"'))
            assert values == ("job_1", token, b'"text"', b"", b"")
    [record] = caplog.records
    assert '"job_1" was not checked' in record.message
    assert "result_schema is not usable" in record.message


def test_unchecked_results_are_logged_once_a_minute(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    clock = TestClock()
    clock.freeze(True)
    service = Service(CONFIG, clock, driver.machine, PIPELINE, JobIds(CLOCK.random_bytes))
    commands = WorkCommands(service, NO_OUTPUT)
    driver.enqueue("job_1", result_schema=REFUSED)
    driver.take()
    for seconds in (0, 30, 29, 1, 40, 21):
        clock.advance(seconds * SECOND_NS)
        commands.ack_values("job_1", AckBody())
    counts = [record.args[2] for record in caplog.records if isinstance(record.args, tuple)]
    assert counts == [1, 4, 6]
