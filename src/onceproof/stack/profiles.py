"""What ``--stack NAME`` names: the containers of this machine, or a profile of ``onceproof.toml``; and what starts there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceproof.stack.compose.profile import NAME, ComposeProfile
from onceproof.stack.external.profile import StackProfile, load_profile

if TYPE_CHECKING:
    from onceproof.stack.external.stack import ExternalStack


def profile_of(name: str) -> StackProfile:
    """Raises `UsageError` as `load_profile`, and for a profile with the reserved name ``compose``."""
    return ComposeProfile.planned() if name == NAME else load_profile(name)


def provider_of(profile: StackProfile) -> type[ExternalStack]:
    """The stack that runs there. Imported only for a run that uses it, with the libraries that no other run needs."""
    if isinstance(profile, ComposeProfile):
        from onceproof.stack.compose.stack import ComposeStack

        return ComposeStack
    from onceproof.stack.external.stack import ExternalStack

    return ExternalStack


def clean_up_stack(name: str, *, dry_run: bool = False) -> list[str]:
    """Remove what killed runs left there: what was done, as sentences. Raises `UsageError` and `EnvironmentProblem`."""
    if name == NAME:
        from onceproof.stack.compose import cleanup as of_containers

        return of_containers.clean_up(dry_run=dry_run)
    from onceproof.stack.external import cleanup

    return cleanup.clean_up(load_profile(name), dry_run=dry_run)
