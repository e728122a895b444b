"""Keeps the timelines of a network: a view that joins two tables, posts and follows, maintained from the changes of both.

Each change is applied to its table. Then the timelines that it concerns are computed again from both tables, which may be done
any number of times. ``--two-steps`` commits the two separately: a process that dies in between has deleted a post, and with it
the author's name, from which its successor would find the timelines.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import Any

import psycopg
from member import Member

# A deletion has the key of its row and nothing else.
POST = {
    "insert": """
        INSERT INTO posts (post, author) VALUES (%(post)s, %(author)s)
        ON CONFLICT (post) DO UPDATE SET author = EXCLUDED.author RETURNING author""",
    "delete": "DELETE FROM posts WHERE post = %(post)s RETURNING author",
}
FOLLOW = {
    "insert": "INSERT INTO follows (follower, followee) VALUES (%(follower)s, %(followee)s) ON CONFLICT DO NOTHING",
    "delete": "DELETE FROM follows WHERE follower = %(follower)s AND followee = %(followee)s",
}
JOIN = """
    INSERT INTO timelines (follower, posts)
    SELECT follower, array_agg(post ORDER BY post) FROM follows JOIN posts ON author = followee
    WHERE follower = ANY(%s) GROUP BY follower
"""


def apply(database: psycopg.Connection, change: dict[str, Any]) -> list[str]:
    """Returns whose timelines the change concerns."""
    if "post" not in change:
        database.execute(FOLLOW[change["change"]], change)
        return [change["follower"]]
    authors = [author for (author,) in database.execute(POST[change["change"]], change).fetchall()]
    followers = database.execute("SELECT follower FROM follows WHERE followee = ANY(%s)", [authors]).fetchall()
    return [follower for (follower,) in followers]


member = Member()
with psycopg.connect(os.environ["ONCEPROOF_POSTGRES"], autocommit=True) as connection:
    for message in member.messages():
        with nullcontext() if "--two-steps" in sys.argv else connection.transaction():
            member.next_effect("posts" if "post" in message else "follows")
            concerned = apply(connection, message)
            member.next_effect("timelines")
            with connection.transaction():
                connection.execute("DELETE FROM timelines WHERE follower = ANY(%s)", [concerned])
                connection.execute(JOIN, [concerned])
