"""Builds the images of ``compose.yaml`` from a local Debian image, for machines without a registry.

They hold what the embedded stack uses: Kafka's pinned jars and the wheel's Postgres.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from docker.errors import APIError, BuildError

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.compose.daemon import client
from onceproof.stack.fetch.components import Components, shipped
from onceproof.stack.kafka.settings import LOGGING
from onceproof.stack.postgres import find_binaries

_POSTGRES_TAG = "onceproof/postgres:18"
BUILD = "`onceproof up --build-from BASE`, BASE a local Debian image"
"""How to get the images where none can be pulled."""

#: A variable of compose.yaml, and the image without it.
_IMAGE = re.compile(r"\$\{(\w+_IMAGE):-([^}]+)\}")


def build(base: str, components: Components) -> Iterator[str]:
    """Build both images from ``base``; yields the name of each one when it is done. Raises `EnvironmentProblem`."""
    jars = [(f"libs/{jar.name}", jar) for jar in components.kafka_jars]
    yield _built("kafka", _kafka_tag(), base, jars, {"log4j2.properties": LOGGING})
    programs = find_binaries().parent
    libraries = programs.parents[1] / f"{programs.parent.name}.libs"
    yield _built("postgres", _POSTGRES_TAG, base, [("pginstall18", programs), ("libs", libraries)], {})


def local_images() -> dict[str, str]:
    """Variable of ``compose.yaml`` -> the image built here, for those that exist in this version."""
    built = {tag for image in client().images.list() for tag in image.tags}
    wanted = {"ONCEPROOF_KAFKA_IMAGE": _kafka_tag(), "ONCEPROOF_POSTGRES_IMAGE": _POSTGRES_TAG}
    return {variable: tag for variable, tag in wanted.items() if tag in built}


def needed() -> dict[str, bool]:
    """Each image that ``compose.yaml`` would use now -> whether this machine has it. Raises `EnvironmentProblem`."""
    text = (files("onceproof") / "compose" / "compose.yaml").read_text(encoding="utf-8")
    chosen = {**dict(_IMAGE.findall(text)), **local_images()}
    chosen |= {variable: os.environ[variable] for variable in chosen if os.environ.get(variable)}
    present = {tag for image in client().images.list() for tag in image.tags}
    return {image: image in present for image in chosen.values()}


def _kafka_tag() -> str:
    version = next(component.version for component in shipped() if component.name == "kafka")
    return f"onceproof/kafka:{version}"


def _built(service: str, tag: str, base: str, folders: list[tuple[str, Path]], texts: dict[str, str]) -> str:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        own = files("onceproof") / "compose" / "images" / service
        for entry in own.iterdir():
            texts = {**texts, entry.name: entry.read_text(encoding="utf-8")}
        for name, text in texts.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
        for name, folder in folders:
            archive.add(folder, arcname=name, filter=_readable)
    context.seek(0)
    try:
        client().images.build(fileobj=context, custom_context=True, tag=tag, buildargs={"BASE": base}, rm=True)
    except (BuildError, APIError) as failed:
        raise EnvironmentProblem(
            f"image {tag} could not be built from {base}: {failed}",
            hint="BASE must be a Debian image of this machine (`docker images`), with Java or with access to Debian's packages",
        ) from None
    return tag


def _readable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """For everybody: the containers do not run as root."""
    member.uid = member.gid = 0
    member.mode |= 0o555 if member.isdir() or member.mode & 0o100 else 0o444
    return member
