"""Which certificates of a service are accepted: those that its profile's authority signed."""

from __future__ import annotations

import ssl

from onceproof.base.errors import EnvironmentProblem
from onceproof.stack.external.profile import Tls


def upstream_context(tls: Tls | None) -> ssl.SSLContext:
    """How to check a service's certificate. Raises `EnvironmentProblem` for a file that is not PEM."""
    tls = tls or Tls()
    try:
        made = ssl.create_default_context(cafile=str(tls.ca) if tls.ca is not None else None)
        if tls.certificate is not None:
            made.load_cert_chain(tls.certificate, tls.key)
    except (ssl.SSLError, OSError) as unreadable:
        files = ", ".join(str(path) for path in (tls.ca, tls.certificate, tls.key) if path is not None)
        raise EnvironmentProblem(f"one of {files} cannot be used: {unreadable}", hint="give PEM files") from None
    made.check_hostname = tls.check_hostname
    return made
