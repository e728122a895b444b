"""Templates in a pipeline's command and environment: ``{kafka}``, ``{topic.NAME}``, ...

Only the names below are templates. Any other text in braces is kept as it is, so that an argument may hold JSON.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

#: Template -> its value. ``NAME`` is a name that the scenario defines.
MEANINGS = {
    "kafka": "bootstrap addresses of Kafka, through the proxies",
    "kafka.security": "security.protocol of those addresses: PLAINTEXT, except with --stack",
    "kafka.ca": "PEM file of the authority to trust there; empty without TLS",
    "kafka.truststore": "the same as a PKCS12 file with the password changeit; empty without TLS",
    "kafka.properties": "properties file of a Java client with login and TLS, as for --command-config; empty without both",
    "kafka.librdkafka": "the same with the property names of librdkafka; empty without both",
    "postgres": "libpq URI of the pipeline's database, without the password (that is in PGPASSFILE)",
    "postgres.jdbc": "JDBC URL of the same database",
    "postgres.driver": "path of the jar of Postgres' JDBC driver, for --jars or spark.jars (it is on the job's class path anyway)",
    "postgres.host": "host of the same database",
    "postgres.port": "its port, through the proxy",
    "postgres.user": "its user",
    "postgres.database": "its name",
    "postgres.password": "the user's password: only in values of pipeline.env, and never stored",
    "spark.master": "address of the stack's Spark cluster, for a job that sets its master itself",
    "checkpoint": "folder for the checkpoints of the job's queries; with an object store its s3a:// URI",
    "topic.NAME": "name of a topic of the input or of prepare.topics",
    "table.NAME": "Parquet file of a static table of prepare.tables",
    "output.NAME": "where an output is stored: the topic's or table's name, or the folder's path",
    "input.TOPIC": "only in the command of oracle batch: Parquet file of the committed records of an input topic",
    "expected.OUTPUT": "only in the command of oracle batch: the Parquet file into which it writes the rows that an output must hold",
    "here": "folder of the scenario file",
    "python": "the Python that runs onceproof",
}

_TEMPLATE = re.compile(
    r"\{(kafka(?:\.(?:security|ca|truststore|properties|librdkafka))?|postgres(?:\.(?:jdbc|driver|host|port|user|database|password))?|spark\.master|checkpoint|here|python|(?:topic|table|output|input|expected)\.[^{}\s\"']+)\}"
)


_LOOKS_LIKE_ONE = re.compile(r"\{([a-z]{3,15}(?:\.[^{}\s\"']{1,60})?)\}")


def used(text: str) -> set[str]:
    """The templates in ``text``, without their braces: ``{"kafka", "topic.flights"}``."""
    return set(_TEMPLATE.findall(text))


def misspelt(text: str) -> Iterator[tuple[str, str]]:
    """Words in braces in ``text`` that are almost a template or belong to a family of them, each with a "did you mean"."""
    families = {name.partition(".")[0] for name in MEANINGS if "." in name}
    plain = [name for name in MEANINGS if name == name.lower()]
    for word in dict.fromkeys(_LOOKS_LIKE_ONE.findall(text)):
        family, dot, name = word.partition(".")
        if word in used(f"{{{word}}}"):
            continue
        near = difflib.get_close_matches(word, plain, n=2, cutoff=0.8)
        if not near and dot and name:
            near = [f"{other}.{name}" for other in difflib.get_close_matches(family, families, n=1, cutoff=0.8)]
            if near == [word]:
                near = [each for each in plain if each.startswith(f"{family}.")]
        if near:
            yield word, "did you mean " + " or ".join(repr(each) for each in near) + "?"


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace each template in ``text`` for which ``values`` has a value, in one pass. The others are kept."""
    return _TEMPLATE.sub(lambda found: values.get(found[1], found[0]), text)
