"""Drawings of a topic's segments and how they came from one another, as pure functions from a layout to text.

`draw_text` is for the terminal, `to_svg` for a browser, `to_dot` and `to_mermaid` for the tools of those names.
"""

from gateway.cli.graph_svg import to_svg
from gateway.cli.graph_text import draw_text
from gateway.cli.graph_words import printable, share, summary
from layout.layouts import Layout
from layout.segments import Segment

__all__ = ["draw_text", "to_dot", "to_mermaid", "to_svg"]

# The few marks that mean nothing to Mermaid; everything else but letters and digits is written as its number.
_PLAIN_IN_MERMAID = frozenset(" /:._-,")


def to_dot(layout: Layout, topic: str = "") -> str:
    """A Graphviz digraph: one box per segment, one arrow from each parent to each child."""
    title = "".join(f"{_dot(line)}\\n" for line in (printable(topic), summary(layout)) if line)
    lines = [
        "digraph layout {",
        f'  graph [label="{title}", labelloc=t, rankdir=TB, fontname="monospace"];',
        '  node [shape=box, style="rounded,filled", fontname="monospace"];',
    ]
    for segment in layout.segments.values():
        colours = (
            'fillcolor="#1a7f6b", color="#1a7f6b", fontcolor="#ffffff"'
            if segment.is_active
            else 'fillcolor="#e7eaee", color="#afb8c1", fontcolor="#57606a"'
        )
        lines.append(f'  s{segment.segment_id} [label="{_label(segment, chr(92) + "n")}", {colours}];')
    lines += [f"  s{parent} -> s{child};" for parent, child in _links(layout)]
    return "\n".join([*lines, "}"]) + "\n"


def to_mermaid(layout: Layout, topic: str = "") -> str:
    """A Mermaid flowchart: one box per segment inside one frame that carries the name."""
    title = "<br/>".join(_mermaid(line) for line in (printable(topic), summary(layout)) if line)
    lines = ["flowchart TB", f'  subgraph layout["{title}"]', "    direction TB"]
    for segment in layout.segments.values():
        state = "active" if segment.is_active else "sealed"
        lines.append(f'    s{segment.segment_id}["{_label(segment, "<br/>")}"]:::{state}')
    lines += [f"    s{parent} --> s{child}" for parent, child in _links(layout)]
    lines += [
        "  end",
        "  classDef active fill:#1a7f6b,stroke:#1a7f6b,color:#ffffff",
        "  classDef sealed fill:#e7eaee,stroke:#afb8c1,color:#57606a",
    ]
    return "\n".join(lines) + "\n"


def _label(segment: Segment, line_break: str) -> str:
    return line_break.join([f"segment {segment.segment_id}", str(segment.range), share(segment)])


def _links(layout: Layout) -> list[tuple[int, int]]:
    return [(parent.segment_id, segment_id) for segment_id in layout.segments for parent in layout.parents(segment_id)]


def _dot(text: str) -> str:
    # Graphviz also reads HTML entities in a quoted label.
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")


def _mermaid(text: str) -> str:
    return "".join(c if c.isalnum() or c in _PLAIN_IN_MERMAID else f"#{ord(c)};" for c in text)
