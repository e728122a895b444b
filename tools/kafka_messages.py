"""Writes `src/onceproof/instruments/proxy/kafka_messages.json` from the message definitions in the pinned kafka-clients jar.

Run it when Kafka's version changes.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

from onceproof.stack.fetch.components import ensure

TARGET = Path(__file__).parent.parent / "src/onceproof/instruments/proxy/kafka_messages.json"

#: Messages whose bodies the proxy reads, for its rules or because they name brokers. Of all others only name and number are kept.
WANTED = {
    "AddOffsetsToTxn",
    "AddPartitionsToTxn",
    "ApiVersions",
    "DescribeCluster",
    "EndTxn",
    "Fetch",
    "FindCoordinator",
    "InitProducerId",
    "ListOffsets",
    "Metadata",
    "OffsetCommit",
    "Produce",
    "ShareAcknowledge",
    "ShareFetch",
    "TxnOffsetCommit",
}
_FIELD = ("name", "type", "versions", "nullableVersions", "flexibleVersions", "taggedVersions", "tag")


def definitions(jar: Path) -> dict[str, Any]:
    """Return what the proxy needs of the jar's ``common/message/*.json``: one entry per API that clients may send to a broker."""
    found: dict[str, Any] = {}
    with zipfile.ZipFile(jar) as archive:
        for name in sorted(archive.namelist()):
            if not re.fullmatch(r"common/message/\w+(Request|Response)\.json", name):
                continue
            text = archive.read(name).decode()
            message = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
            api = message["name"].removesuffix("Request").removesuffix("Response")
            entry = found.setdefault(api, {"key": message["apiKey"]})
            if api in WANTED:
                structs = {struct["name"]: struct["fields"] for struct in message.get("commonStructs", [])}
                entry[message["type"]] = {
                    "valid": message["validVersions"],
                    "flexible": message["flexibleVersions"],
                    "fields": _fields(message["fields"], structs),
                }
    return dict(sorted(found.items(), key=lambda item: item[1]["key"]))


def _fields(fields: list[dict[str, Any]], structs: dict[str, Any]) -> list[dict[str, Any]]:
    kept = []
    for field in fields:
        slim = {key: field[key] for key in _FIELD if key in field}
        inner = field.get("fields") or structs.get(field["type"].removeprefix("[]"))
        if inner:
            slim["fields"] = _fields(inner, structs)
        kept.append(slim)
    return kept


def text(jar: Path) -> str:
    lines = (f"{json.dumps(api)}: {json.dumps(entry)}" for api, entry in definitions(jar).items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def clients_jar() -> Path:
    return next(jar for jar in ensure().kafka_jars if jar.name.startswith("kafka-clients-"))


if __name__ == "__main__":
    TARGET.write_text(text(clients_jar()), encoding="utf-8")
    sys.stdout.write(f"{TARGET}: {TARGET.stat().st_size} bytes\n")
