"""The command `list`. Each kind of list is in a module of its own: the shipped scenarios need none of what the registries import."""

from __future__ import annotations

import typer

from onceproof.cli.options import DEFAULT_RUNS, LISTS, ItemToList, Json, ListBy, RunsToRead, WhatToList
from onceproof.cli.output import failing_well

commands = typer.Typer()


@commands.command("list", rich_help_panel="Write a scenario")
def list_(
    what: WhatToList = LISTS[0],
    name: ItemToList = None,
    by: ListBy = None,
    runs: RunsToRead = DEFAULT_RUNS,
    as_json: Json = False,
) -> None:
    """List the shipped scenarios, or what scenarios are made of.

    With a NAME, lists the fields of one fault, oracle, data set or store.

    \b
    onceproof list
    onceproof list --by row
    onceproof list faults crash
    """
    with failing_well(as_json) as output:
        if by is not None:
            from onceproof.cli.show.phenomena import listing_by_row

            output.result(listing_by_row(what, name, by, runs, as_json))
        elif (what, name) == ("scenarios", None):
            from onceproof.cli.show.scenarios import listing_of_scenarios

            output.result(listing_of_scenarios(as_json))
        else:
            from onceproof.cli.show.registries import listing, listing_of

            output.result(listing(what, as_json) if name is None else listing_of(what, name, as_json))
