"""Text for an XML document."""

from __future__ import annotations

import re

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def legal(text: str) -> str:
    """``text`` with U+FFFD for each character that no XML 1.0 document may contain, not even escaped."""
    return _NOT_XML.sub("\ufffd", text)
