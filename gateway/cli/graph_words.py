"""The words that all drawings of a layout share."""

from layout.layouts import Layout
from layout.segments import Segment


def printable(name: str) -> str:
    """A name without characters that move a cursor, hide or reorder text: those are written as their escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in name)


def share(segment: Segment) -> str:
    return f"{segment.range.share * 100:.3g} %"


def summary(layout: Layout) -> str:
    active = len(layout.active)
    sealed = len(layout.segments) - active
    return f"epoch {layout.epoch}: {active} active segment{'' if active == 1 else 's'}, {sealed} sealed"


def fate(segment: Segment, layout: Layout) -> str:
    """What became of a sealed segment."""
    children = layout.children(segment.segment_id)
    if not children:
        return "successors pruned"
    names = " and ".join(str(child.segment_id) for child in children)
    if len(children) > 1:
        # A migrated topic has several old partitions that all have the same children.
        return f"{'replaced by' if children[0].is_merge else 'split into'} {names}"
    others = [str(key) for key in children[0].parent_ids if key != segment.segment_id]
    if others:
        return f"merged with {' and '.join(others)} into {names}"
    # The others that were merged may have been pruned; the wider range still tells.
    return f"{'replaced by' if children[0].range == segment.range else 'merged into'} {names}"
