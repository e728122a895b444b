"""Asks Kafka about a consumer group."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from onceproof.base.errors import EnvironmentProblem, WaitTimeout
from onceproof.base.waiting import wait_until

#: Errors until the first member has joined and the group's coordinator has loaded its part of the log.
_NO_GROUP_YET = {
    KafkaError.GROUP_ID_NOT_FOUND,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
_ASK_AGAIN_S = 2.0
"""Kafka answers within milliseconds. But a client's lookup of a coordinator that is still being created may never be answered: one
question failed after its 30 s, while the broker was well and the group was complete after one second."""


class _Unanswered(Exception):
    """Kafka has not answered this question; the next one may be answered."""


def describe_group(admin: AdminClient, name: str, *, within_s: float) -> Any | None:
    """The group as its coordinator reports it (confluent_kafka's ConsumerGroupDescription); None if there is no such group yet.

    Raises `EnvironmentProblem` for any other error, and without an answer within ``within_s`` seconds.
    """
    unanswered = ""

    def ask() -> tuple[Any]:
        nonlocal unanswered
        try:
            return (admin.describe_consumer_groups([name], request_timeout=_ASK_AGAIN_S)[name].result(),)
        except KafkaException as refused:
            error = refused.args[0]
            if error.code() == KafkaError._TIMED_OUT:
                unanswered = error.str()
                raise _Unanswered from refused
            if error.code() not in _NO_GROUP_YET:
                raise EnvironmentProblem(
                    f"Kafka does not report the members of group {name}: {error.str()}"
                ) from refused
            return (None,)

    try:
        (described,) = wait_until(f"the members of group {name}", ask, deadline_s=within_s, ignoring=_Unanswered)
    except WaitTimeout as given_up:
        raise EnvironmentProblem(
            f"Kafka did not report the members of group {name} within {within_s:g} s; Kafka's client: {unanswered}"
        ) from given_up
    return described
