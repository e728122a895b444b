"""Saves edits of one page to the database, then to the search index. The editors are served by two processes.

The database refuses an edit that is older than what it has. ``--one-log`` is the remedy: only what the database accepted goes
to the index, in the order in which it was committed there.
"""

from __future__ import annotations

import os
import sys

import outbox
import psycopg
from member import Member
from topic import Topic

SAVE = "UPDATE pages SET edit = %(edit)s, editor = %(editor)s WHERE page = %(page)s AND edit < %(edit)s"

member, index = Member(), Topic("index")
with psycopg.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True) as database:
    for request in member.messages():
        page = {"page": "home", "edit": request["id"], "editor": request["key"]}
        member.next_effect("pages")
        with database.transaction():
            saved = database.execute(SAVE, page).rowcount == 1
            if saved and "--one-log" in sys.argv:
                outbox.announce(database, page["page"], page)
        member.next_effect("index")
        if "--one-log" in sys.argv:
            outbox.relay(database, index)
        else:
            index.send(page, page["page"])
