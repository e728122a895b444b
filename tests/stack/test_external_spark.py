"""An external Spark, as far as the harness can see it: whether its master can be reached, and whether the job uses it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from onceproof.base.errors import EnvironmentProblem
from onceproof.scenario.stack import SparkStack
from onceproof.stack.external.spark import ExternalSpark, exposure, masters


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


def test_a_master_that_listens_is_found_also_as_the_second_of_two(listener: socket.socket) -> None:
    spec = SparkStack(master=f"spark://127.0.0.1:1,{address(listener)}")
    assert masters(spec.master)[0] == ("127.0.0.1", 1)
    assert ExternalSpark.check(spec).conf.master == spec.master


def test_a_master_that_refuses_is_an_error_with_the_setting_and_the_fix() -> None:
    with pytest.raises(EnvironmentProblem, match=r"stack\.spark\.master: Spark spark://127\.0\.0\.1:1 .*refused") as it:
        ExternalSpark.check(SparkStack(master="spark://127.0.0.1:1"))
    assert it.value.exit_code == 4 and "spark://HOST:7077" in (it.value.hint or "")


def test_a_name_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(EnvironmentProblem, match="the name no-such-host cannot be resolved"):
        ExternalSpark.check(SparkStack(master="spark://no-such-host:7077"), "[stack.staging] spark")


def test_a_text_that_cannot_be_a_name_is_an_error_too() -> None:
    with pytest.raises(EnvironmentProblem, match="cannot be resolved"):
        ExternalSpark.check(SparkStack(master=f"spark://{'a' * 70}.b:7077"))


def test_a_master_that_does_not_answer_is_an_error_within_the_time_limit() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with socket.create_connection(full.getsockname()), socket.socket() as second:
            second.setblocking(False)
            second.connect_ex(full.getsockname())  # the queue of the listener is full: a third one gets no answer
            began = time.monotonic()
            with pytest.raises(EnvironmentProblem, match="does not answer within 1 s"):
                ExternalSpark.check(SparkStack(master=f"spark://{address(full)}"), connect_s=1.0)
            assert time.monotonic() - began < 3


def test_an_address_of_another_machine_cannot_be_bound(listener: socket.socket) -> None:
    spec = SparkStack(master=f"spark://{address(listener)}", bind="198.51.100.1")
    with pytest.raises(EnvironmentProblem, match=r"spark\.bind: 198\.51\.100\.1 is not an address of this machine"):
        ExternalSpark.check(spec)


def test_a_driver_that_is_connected_elsewhere_is_an_error(listener: socket.socket) -> None:
    spark = ExternalSpark(SparkStack(master=f"spark://{address(listener)}"))
    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_connection(other.getsockname()):
        with pytest.raises(EnvironmentProblem, match="its driver is not connected to spark://"):
            spark.check_used([os.getpid()])
        with socket.create_connection(listener.getsockname()):
            spark.check_used([os.getpid()])


def test_a_driver_that_is_ending_is_not_accused(listener: socket.socket) -> None:
    """It closes its connection to the master first, and then those to Kafka and Postgres."""
    spark = ExternalSpark(SparkStack(master=f"spark://{address(listener)}"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        ending = socket.create_connection(other.getsockname())
        closing = threading.Timer(0.5, ending.close)
        closing.start()
        spark.check_used([os.getpid()])
        closing.join()


def test_a_driver_that_has_ended_is_not_accused(listener: socket.socket) -> None:
    spark = ExternalSpark(SparkStack(master=f"spark://{address(listener)}"))
    spark.check_used([])
    spark.check_used([2**22 + 1])


def test_a_spark_of_the_run_exposes_nothing() -> None:
    assert exposure(SparkStack()) is None
