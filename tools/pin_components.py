"""Resolves the Java components again and writes their pins. Run it when a version changes, then review the difference.

``python tools/pin_components.py`` overwrites ``src/onceproof/stack/fetch/components.json``.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

from jgo.maven import MavenContext

from onceproof.stack.fetch import maven as maven_files

PINS = Path(__file__).parent.parent / "src/onceproof/stack/fetch/components.json"

KAFKA = "4.3.1"
SPARK = "4.2.0"
COMPILER = "3.42.0"
POSTGRES_DRIVER = "42.7.12"
QPID = "9.2.0"
DELTA = "4.4.0"
HADOOP = "3.5.0"
AWS_SDK = "2.35.4"
APICURIO = "3.0.9"

#: The modules of the AWS SDK that the s3a file system needs, 12 MB. Hadoop names the SDK's bundle of 600 MB instead.
AWS_MODULES = (
    *("annotations", "apache-client", "arns", "auth", "aws-core", "aws-json-protocol", "aws-query-protocol"),
    *("aws-xml-protocol", "checksums", "checksums-spi", "crt-core", "endpoints-spi", "http-auth", "http-auth-aws"),
    *("http-auth-aws-eventstream", "http-auth-spi", "http-client-spi", "identity-spi", "json-utils", "metrics-spi"),
    *(
        "netty-nio-client",
        "profiles",
        "protocol-core",
        "regions",
        "retries",
        "retries-spi",
        "s3",
        "s3-transfer-manager",
    ),
    *("sdk-core", "sts", "third-party-jackson-core", "url-connection-client", "utils", "utils-lite"),
)

#: Resolved with all of their run-time dependencies.
WITH_DEPENDENCIES = {
    "kafka": [f"org.apache.kafka:kafka_2.13:{KAFKA}"],
    "qpid-broker": [
        f"org.apache.qpid:qpid-broker-core:{QPID}",
        f"org.apache.qpid:qpid-broker-plugins-amqp-0-8-protocol:{QPID}",
        f"org.apache.qpid:qpid-broker-plugins-memory-store:{QPID}",
        f"org.apache.qpid:qpid-broker-plugins-logging-logback:{QPID}",
    ],
}

#: Taken without their dependencies. The broker logs through slf4j 1.7 and brings log4j-core, but no binding between the two.
#: The connector's other dependencies are among pyspark's own jars; its token provider is published up to 4.0.0 only
#: and is used only with delegation tokens.
ALONE = {
    "kafka": ["org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"],
    "spark-kafka-connector": [
        f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK}",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.2",
        "org.apache.commons:commons-pool2:2.13.1",
    ],
    # Compiles src/onceproof/instruments/jvm; one jar, which runs on Java 17 and needs no JDK.
    "java-compiler": [f"org.eclipse.jdt:ecj:{COMPILER}"],
    # For Spark 4.2. Its other dependencies are among pyspark's own jars, or those of its Unity Catalog, which is not used.
    "delta": [
        f"io.delta:delta-spark_4.2_2.13:{DELTA}",
        f"io.delta:delta-storage:{DELTA}",
        f"io.delta:delta-kernel-api:{DELTA}",
        f"io.delta:delta-kernel-defaults:{DELTA}",
    ],
    # For the Hadoop that pyspark brings; the SDK's version is the one in hadoop-project's pom.
    "hadoop-aws": [
        f"org.apache.hadoop:hadoop-aws:{HADOOP}",
        # A manager of checkpoint files that writes an entry with one PUT. Spark published this module up to 4.1.2 only.
        "org.apache.spark:spark-hadoop-cloud_2.13:4.1.2",
        "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
        *(f"software.amazon.awssdk:{module}:{AWS_SDK}" for module in AWS_MODULES),
        "software.amazon.eventstream:eventstream:1.0.1",
        "org.reactivestreams:reactive-streams:1.0.4",
    ],
    # The whole program, in one archive.
    "apicurio-registry": [f"io.apicurio:apicurio-registry-app:{APICURIO}:all:tar.gz"],
    # Its only dependency, checker-qual, consists of annotations.
    "postgres-driver": [f"org.postgresql:postgresql:{POSTGRES_DRIVER}"],
    # The program itself. Its dependencies are all plugins, one of which needs an artifact that is not published.
    "qpid-broker": [f"org.apache.qpid:qpid-broker:{QPID}", "commons-cli:commons-cli:1.6.0"],
}

VERSIONS = {
    "kafka": KAFKA,
    "spark-kafka-connector": SPARK,
    "java-compiler": COMPILER,
    "postgres-driver": POSTGRES_DRIVER,
    "qpid-broker": QPID,
    "delta": DELTA,
    "hadoop-aws": HADOOP,
    "apicurio-registry": APICURIO,
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        maven = MavenContext(repo_cache=Path(folder), timeout=60)
        pins = {name: {"version": version, "jars": _jars(maven, name)} for name, version in VERSIONS.items()}
    PINS.write_text(json.dumps(pins, indent=2) + "\n", encoding="utf-8")


def _jars(maven: Any, name: str) -> list[dict[str, str]]:
    artifacts = [maven_files.artifact(maven, coordinate) for coordinate in ALONE[name]]
    if name in WITH_DEPENDENCIES:
        roots = [maven.create_dependency(coordinate) for coordinate in WITH_DEPENDENCIES[name]]
        inputs, transitive = maven.resolver.resolve(roots)
        artifacts += [dependency.artifact for dependency in inputs + transitive]
    return sorted((_pin(artifact) for artifact in artifacts), key=lambda pin: pin["coordinate"])


def _pin(artifact: Any) -> dict[str, str]:
    path: Path = artifact.resolve()
    kind = [artifact.classifier, artifact.packaging] if artifact.packaging != "jar" else []
    return {
        "coordinate": ":".join([artifact.groupId, artifact.artifactId, artifact.version, *kind]),
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


if __name__ == "__main__":
    main()
