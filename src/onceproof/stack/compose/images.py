"""Builds the images of ``compose.yaml`` from a local Debian image, for machines without a registry.

They hold Kafka's pinned jars, the wheel's Postgres and Spark from the package pyspark, as runs without containers use them, and Apicurio
Registry.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.metadata import files as files_of
from importlib.resources import files
from pathlib import Path
from typing import IO

from docker.errors import APIError, BuildError

from onceproof.base.errors import EnvironmentProblem
from onceproof.base.version import __version__
from onceproof.stack.compose.daemon import client
from onceproof.stack.fetch.components import Components, ensure_registry, shipped
from onceproof.stack.kafka.settings import LOGGING
from onceproof.stack.postgres import find_binaries

_POSTGRES_TAG = "onceproof/postgres:18"
_PACKAGES = ("psycopg", "psycopg-binary", "confluent-kafka", "pyarrow", "pandas")
"""For the image of Spark: what a job imports to write to Kafka and Postgres and to use Arrow, for which PySpark wants pandas too."""
BUILD = "`onceproof up --build-from BASE`, BASE a local Debian image"
"""How to get the images where none can be pulled."""

_COLOUR = re.compile(r"\x1b\[\d*m")
#: A variable of compose.yaml, and the image without it.
_IMAGE = re.compile(r"\$\{(\w+_IMAGE):-([^}]+)\}")


def build(base: str, components: Components) -> Iterator[str]:
    """Build all images but that of Spark from ``base``; yields the name of each one when it is done. Raises `EnvironmentProblem`."""
    jars = [(f"libs/{jar.name}", jar) for jar in components.kafka_jars]
    yield _built("kafka", _kafka_tag(), base, jars, {"log4j2.properties": LOGGING})
    programs = find_binaries().parent
    libraries = programs.parents[1] / f"{programs.parent.name}.libs"
    yield _built("postgres", _POSTGRES_TAG, base, [("pginstall18", programs), ("libs", libraries)], {})
    archive = ensure_registry()
    yield _built("registry", _registry_tag(), base, [("registry.tar.gz", archive)], {})


def build_spark(base: str) -> str:
    """Build the image of Spark from ``base``; returns its name. Raises `EnvironmentProblem`, also if its Python is another one."""
    spark = Path(str(files("pyspark")))
    of_spark = [("bin", spark / "bin"), ("jars", spark / "jars"), ("lib", spark / "python" / "lib")]
    return _built("spark", _spark_tag(), base, [*of_spark, *_packages()], {})


def _packages() -> Iterator[tuple[str, Path]]:
    """What a job imports: name in the image, and file or folder, of installed packages and of onceproof's own sinks."""
    own = Path(str(files("onceproof")))
    yield "packages/onceproof/__init__.py", own / "__init__.py"
    yield "packages/onceproof/sinks", own / "sinks"
    for package in _with_dependencies(_PACKAGES):
        for file in files_of(package) or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                yield f"packages/{file}", Path(str(file.locate()))


def _with_dependencies(packages: Iterable[str]) -> list[str]:
    """These packages, and the installed ones that they require without an extra."""
    found: list[str] = []
    waiting = [*packages]
    while waiting:
        name = waiting.pop()
        with suppress(PackageNotFoundError):  # required on other systems only
            needed_by = [one for one in requires(name) or () if "extra ==" not in one]
            if name not in found:
                found.append(name)
                waiting += [re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in needed_by]
    return found


def local_images() -> dict[str, str]:
    """Variable of ``compose.yaml`` -> the image built here, for those that exist in this version."""
    built = {tag for image in client().images.list() for tag in image.tags}
    wanted = {
        "ONCEPROOF_KAFKA_IMAGE": _kafka_tag(),
        "ONCEPROOF_POSTGRES_IMAGE": _POSTGRES_TAG,
        "ONCEPROOF_REGISTRY_IMAGE": _registry_tag(),
        "ONCEPROOF_SPARK_IMAGE": _spark_tag(),
    }
    return {variable: tag for variable, tag in wanted.items() if tag in built}


def needed() -> dict[str, bool]:
    """Each image that ``compose.yaml`` would use now -> whether this machine has it. Raises `EnvironmentProblem`."""
    text = (files("onceproof") / "compose" / "compose.yaml").read_text(encoding="utf-8")
    chosen = {**dict(_IMAGE.findall(text)), **local_images()}
    chosen |= {variable: os.environ[variable] for variable in chosen if os.environ.get(variable)}
    present = {tag for image in client().images.list() for tag in image.tags}
    return {image: image in present for image in chosen.values()}


def _kafka_tag() -> str:
    return f"onceproof/kafka:{_version('kafka')}"


def _registry_tag() -> str:
    return f"onceproof/registry:{_version('apicurio-registry')}"


def _version(component: str) -> str:
    return next(each.version for each in shipped() if each.name == component)


def _spark_tag() -> str:
    """Its packages are those of this onceproof and this Python."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"onceproof/spark:{version('pyspark')}-python{python}-onceproof{__version__}"


def _built(service: str, tag: str, base: str, folders: list[tuple[str, Path]], texts: dict[str, str]) -> str:
    with tempfile.TemporaryFile() as context:  # Spark is too large for the memory
        _pack(context, service, folders, texts)
        context.seek(0)
        try:
            client().images.build(
                fileobj=context, custom_context=True, tag=tag, buildargs={"BASE": base}, rm=True, forcerm=True
            )
        except (BuildError, APIError) as failed:
            said = [_COLOUR.sub("", line.get("stream", "")).rstrip() for line in getattr(failed, "build_log", ())]
            tail = "\n".join([str(failed), *[line for line in said if line][-4:]])
            raise EnvironmentProblem(
                f"image {tag} could not be built from {base}: {tail}", hint=_needs(service)
            ) from None
    return tag


def _needs(service: str) -> str:
    needs = (
        "BASE must be a Debian image of this machine (`docker images`), with Java or with access to Debian's packages"
    )
    if service == "spark":
        needs += (
            f"; its python3 must be Python {sys.version_info.major}.{sys.version_info.minor}, as here. "
            "Only scenarios with stack.spark need this image"
        )
    return needs


def _pack(context: IO[bytes], service: str, folders: list[tuple[str, Path]], texts: dict[str, str]) -> None:
    """Write the build's files as an archive: the image's own, ``texts``, and ``folders`` (name there, file or folder)."""
    with tarfile.open(fileobj=context, mode="w") as archive:
        own = files("onceproof") / "compose" / "images" / service
        for entry in own.iterdir():
            texts = {**texts, entry.name: entry.read_text(encoding="utf-8")}
        for name, text in texts.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
        for name, folder in folders:
            archive.add(folder.resolve(), arcname=name, filter=_readable)


def _readable(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """For everybody, because the containers do not run as root; None for what Python makes by itself."""
    if "__pycache__" in member.name:
        return None
    member.uid = member.gid = 0
    member.mode |= 0o555 if member.isdir() or member.mode & 0o100 else 0o444
    return member
