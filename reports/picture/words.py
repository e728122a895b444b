"""The events of a run of consumers in words: for the tooltips of the picture, and for who cannot see it."""

from __future__ import annotations

from onceproof.reports.picture.picture import Picture, Row


def in_words(picture: Picture, number: int) -> str:
    """Row ``number`` of the picture as one sentence, without its time."""
    row = picture.rows[number]
    source, target, message = (picture.lanes[row.source].name, picture.lanes[row.target].name, f"m{row.message}")
    match row.kind:
        case "publish":
            return f"{message} is published to {target}"
        case "take":
            return f"{target} takes {message} from {source}"
        case "again":
            return f"{target} takes {message} from {source}, which had been given out before"
        case "effect":
            return f"{source} writes {message} to {target}{', out of order' if picture.is_late(row) else ''}"
        case "acknowledge":
            return f"{source} acknowledges {message}"
        case "crash":
            held = message_of(picture, number)
            return f"{source} dies{f' while it has m{held}' if held else ''}"
        case "cut":
            return f"{source} is cut off from the broker"
        case "start":
            return f"{source} is started again"
        case "return":
            return f"{target} has {message} of {source} again"
        case "refuse":
            return f"{target} refuses {message} of {source}"
        case "retry":
            return f"{source} puts {message} into {target}, for later"
        case "dead-letter":
            return f"{source} puts {message}, which its output refuses, into {target}"
        case "stop":
            return f"{source} is stopped"
        case "resume":
            return f"{source} is resumed"
        case "delete":
            return f"{source} deletes {message}, which no consumer has read"
        case "skip":
            return f"{message} of {source} is skipped: its consumer's position is past it"
        case "lost":
            return f"the acknowledgement of {message} by {source} gets no answer"
        case "fenced":
            return f"the broker refuses the acknowledgement of {message} by {source}"
        case "fail":
            return f"the step of {source} for {message} fails, because its connection is gone"


def message_of(picture: Picture, number: int) -> int:
    """The message that row ``number`` is about; 0 if it is about none. A crash is about the message that the consumer had."""
    row: Row = picture.rows[number]
    if row.message:
        return row.message
    ended = (hold for hold in picture.holds if hold.crashed and hold.lane == row.source and hold.last == number)
    return next((hold.message for hold in ended), 0)


def label_of(row: Row) -> str:
    """The label of a row's arrow."""
    message = f"m{row.message}"
    labels = {
        "again": f"{message} again",
        "return": f"{message} back",
        "retry": f"{message} later",
        "dead-letter": f"{message} aside",
    }
    labels |= {"refuse": f"{message} refused", "acknowledge": "ack", "lost": "ack lost", "fenced": "ack refused"}
    return (labels | {"fail": "fails"}).get(row.kind, message)
