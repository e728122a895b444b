"""What ``--stack NAME`` names: the containers of this machine, or a profile of ``onceproof.toml``."""

from __future__ import annotations

from onceproof.stack.compose.stack import NAME, ComposeProfile
from onceproof.stack.external.profile import StackProfile, load_profile


def profile_of(name: str) -> StackProfile:
    """Raises `UsageError` as `load_profile`, and for a profile with the reserved name ``compose``."""
    return ComposeProfile.planned() if name == NAME else load_profile(name)
