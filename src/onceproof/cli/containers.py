"""The commands for services in containers, for work by hand: `up` and `down`."""

from __future__ import annotations

from typing import Annotated

import typer

from onceproof.cli.output import failing_well

_MACHINE = "This machine"

commands = typer.Typer()


@commands.command(rich_help_panel=_MACHINE)
def up(
    brokers: Annotated[
        int, typer.Option(help="1: a single Kafka node. 3: three brokers and a controller.", min=1, max=3)
    ] = 1,
    registry: Annotated[bool, typer.Option("--registry", help="Also start a schema registry, in memory.")] = False,
    build_from: Annotated[
        str | None,
        typer.Option(
            metavar="BASE",
            help="Build the images from this local Debian image first, instead of pulling the official ones.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Start Kafka and Postgres in containers, on fixed ports of loopback.

    `onceproof run SCENARIO --stack compose` uses them until `onceproof down`.
    Either all services are healthy at the end, or none is left. Needs Docker
    with its compose plugin: `onceproof doctor`.

    \b
    onceproof up
    onceproof up --brokers 3 --registry
    onceproof up --build-from debian:bookworm-slim
    """
    with failing_well() as output:
        from onceproof.base.errors import EnvironmentProblem, UsageError
        from onceproof.stack.compose import images
        from onceproof.stack.compose.project import Project
        from onceproof.stack.fetch import components

        if brokers == 2:
            raise UsageError("--brokers 2 is not possible: a cluster of two cannot lose one", hint="use 1 or 3")
        if build_from is not None:
            for image in images.build(build_from, components.ensure()):
                output.say(f"built {image}")
            try:
                output.say(f"built {images.build_spark(build_from)}")
            except EnvironmentProblem as failed:  # most scenarios do without it
                output.say(f"warning: {failed.message}\n  {failed.hint}")
        project = Project()
        project.up(brokers, registry=registry)
        url = project.registry_url()
        output.result(
            f"Kafka      {','.join(project.addresses())}\n"
            f"Postgres   {project.postgres_uri()}\n"
            f"password   {project.postgres().name} has it as POSTGRES_PASSWORD\n"
            + ("" if url is None else f"registry   {url}\n")
            + "next       onceproof run naive-append --stack compose\n"
            "           onceproof down"
        )


@commands.command(rich_help_panel=_MACHINE)
def down() -> None:
    """Remove the containers of `onceproof up`, with all their data."""
    with failing_well() as output:
        from onceproof.stack.compose.project import Project

        Project().down()
        output.result("the containers and their data are removed")
