"""Drawings of layouts: every segment is there once, nothing overlaps, and no name can break a format."""

import re
import xml.etree.ElementTree as ET
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.cli.graph import draw_text, to_dot, to_mermaid, to_svg
from layout.layouts import Layout
from layout.ranges import HashRange
from layout.segments import Segment, SegmentState

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = 'topic://t/n/a"b\\"<script>&amp;#34;`]);end\n\x1b[31m\x00--><br/>%{日本}\u202e\ud800'


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    layout = Layout.create(draw(st.integers(1, 6)), 0)
    for _ in range(draw(st.integers(0, 14))):
        prunable = [s.segment_id for s in layout.segments.values() if not s.is_active and not s.parent_ids]
        match draw(st.sampled_from(["split", "split", "merge", "prune"])):
            case "merge" if len(layout.active) > 1:
                index = draw(st.integers(0, len(layout.active) - 2))
                first, second = layout.active[index : index + 2]
                layout = layout.merge(second.segment_id, first.segment_id, 0)
            case "prune" if prunable:
                layout = layout.prune(draw(st.sampled_from(prunable)))
            case _:
                layout = layout.split(draw(st.sampled_from(layout.active)).segment_id, 0)
    return layout


def split_merge_split() -> Layout:
    return Layout.create(1, 0).split(0, 0).split(1, 0).merge(4, 2, 0).split(5, 0)


def migrated() -> Layout:
    """Two old partitions over the whole ring, sealed from the start, above two segments that replaced both."""
    old = Segment(0, HashRange.full(), SegmentState.SEALED, child_ids=(2, 3), sealed_at_epoch=0, sealed_at_ms=0)
    halves = Layout.create(2, 0).segments.values()
    new = [replace(half, segment_id=half.segment_id + 2, parent_ids=(0, 1)) for half in halves]
    segments = [old, replace(old, segment_id=1), *new]
    return Layout(0, 4, {segment.segment_id: segment for segment in segments})


def diamonds(levels: int) -> Layout:
    layout = Layout.create(1, 0)
    for _ in range(levels):
        layout = layout.split(layout.active[0].segment_id, 0)
        layout = layout.merge(layout.active[0].segment_id, layout.active[1].segment_id, 0)
    return layout


def drawn_part(text: str) -> str:
    """The drawing without the heading above and the lists below it."""
    return text.split("\n\n")[1]


EXAMPLES = {
    "one": Layout.create(1, 0),
    "four": Layout.create(4, 0),
    "sixty-four": Layout.create(64, 0).split(5, 0).merge(64, 65, 0),
    "split, merge, split": split_merge_split(),
    "migrated": migrated(),
    "many epochs": diamonds(40),
}


def test_text_shows_a_split_a_merge_and_a_split_with_lines() -> None:
    assert draw_text(split_merge_split(), "topic://public/default/orders") == (
        "topic://public/default/orders\n"
        "epoch 4: 3 active segments, 5 sealed\n"
        "\n"
        "○ 0 ─┬─ ○ 1 ─┬─ ● 3 ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄  0000-3fff       25 %\n"
        "     │       └─ ○ 4 ─┬─ ○ 5 ─┬─ ● 6  4000-9fff     37.5 %\n"
        "     └─ ○ 2 ─────────┘       │\n"
        "                             └─ ● 7  a000-ffff     37.5 %\n"
        "\n"
        "● active   ○ sealed   share of the hash ring on the right\n"
        "\n"
        "○ 0  0000-ffff  epoch 0 to 1, split into 1 and 2\n"
        "○ 1  0000-7fff  epoch 1 to 2, split into 3 and 4\n"
        "○ 2  8000-ffff  epoch 1 to 3, merged with 4 into 5\n"
        "○ 4  4000-7fff  epoch 2 to 3, merged with 2 into 5\n"
        "○ 5  4000-ffff  epoch 3 to 4, split into 6 and 7\n"
    )


def test_text_of_a_new_topic_is_one_row_per_segment() -> None:
    assert drawn_part(draw_text(Layout.create(2, 0))) == "● 0  0000-7fff       50 %\n● 1  8000-ffff       50 %"


def test_text_says_merged_also_when_the_other_parent_was_pruned() -> None:
    layout = split_merge_split().prune(0).prune(2)
    assert "○ 4  4000-7fff  epoch 2 to 3, merged into 5\n" in draw_text(layout)


@given(layouts())
def test_text_draws_every_segment_once_and_every_active_range(layout: Layout) -> None:
    drawing = drawn_part(draw_text(layout, width=10_000))
    labels = re.findall(r"([●○]) (\d+)", drawing)
    expected = [("●" if s.is_active else "○", str(s.segment_id)) for s in layout.segments.values()]
    assert sorted(labels) == sorted(expected)
    rows = re.findall(r"  ([0-9a-f]{4}-[0-9a-f]{4})  ", drawing)
    assert rows == [str(segment.range) for segment in layout.active]


@given(layouts(), st.integers(60, 120))
def test_text_keeps_to_the_width_and_never_drops_an_active_segment(layout: Layout, width: int) -> None:
    drawing = drawn_part(draw_text(layout, width=width))
    assert max(map(len, drawing.splitlines())) <= width
    assert re.findall(r"● (\d+)", drawing) == [str(segment.segment_id) for segment in layout.active]


def test_text_of_a_deep_history_shows_the_newest_and_says_what_is_missing() -> None:
    text = draw_text(diamonds(300).split(900, 0), width=80)
    drawing = drawn_part(text)
    assert max(map(len, drawing.splitlines())) <= 80
    assert all(line.startswith(("┄ ", "  ")) for line in drawing.splitlines())
    assert {"● 901", "● 902"} <= set(re.findall(r"● \d+", drawing))
    assert "older generations do not fit" in text
    assert "older sealed segments" in text


def test_text_of_tangled_links_falls_back_to_a_list() -> None:
    text = draw_text(migrated())
    assert drawn_part(text) == "● 2  0000-7fff       50 %\n● 3  8000-ffff       50 %"
    assert "○ 1  0000-ffff  epoch 0 to 0, replaced by 2 and 3\n" in text


@pytest.mark.parametrize("example", EXAMPLES)
def test_colours_change_nothing_but_the_colours(example: str) -> None:
    layout = EXAMPLES[example]
    colored = draw_text(layout, "name", color=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == draw_text(layout, "name")
    assert colored.count("\x1b[0;1;32m") >= len(layout.active)
    assert "\x1b" not in draw_text(layout, "name")


def test_text_defuses_names_that_would_steer_the_terminal() -> None:
    first, *_ = draw_text(Layout.create(1, 0), HOSTILE).splitlines()
    assert first.isprintable()
    assert "\\n\\x1b[31m\\x00" in first
    assert "\\u202e" in first


def boxes(svg: str) -> dict[str, tuple[float, float, float, float]]:
    found: dict[str, tuple[float, float, float, float]] = {}
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        if "id" in group.attrib:
            assert group.attrib["id"] not in found
            box = group.find(f"{SVG}rect")
            assert box is not None
            x, y, width, height = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
            found[group.attrib["id"]] = (x, y, x + width, y + height)
    return found


@pytest.mark.parametrize("example", EXAMPLES)
def test_svg_has_one_box_per_segment_inside_the_page(example: str) -> None:
    layout = EXAMPLES[example]
    svg = to_svg(layout, "topic://t/n/x")
    root = ET.fromstring(svg)
    found = boxes(svg)
    assert set(found) == {f"segment-{key}" for key in layout.segments}
    for left, top, right, bottom in found.values():
        assert 0 < left < right < float(root.attrib["width"])
        assert 0 < top < bottom < float(root.attrib["height"])
    states = [group.attrib["class"] for group in root.iter(f"{SVG}g") if "id" in group.attrib]
    assert states == ["active" if s.is_active else "sealed" for s in layout.segments.values()]


@settings(max_examples=50)
@given(layouts())
def test_svg_boxes_do_not_overlap_and_children_stand_below_their_parents(layout: Layout) -> None:
    found = boxes(to_svg(layout))
    for a, b in combinations(found.values(), 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    for key in layout.segments:
        for parent in layout.parents(key):
            upper, lower = found[f"segment-{parent.segment_id}"], found[f"segment-{key}"]
            assert upper[3] < lower[1]
            assert upper[0] < lower[2]
            assert lower[0] < upper[2]


@pytest.mark.parametrize("example", EXAMPLES)
def test_svg_captions_fit_their_boxes(example: str) -> None:
    character, line = 0.6 * 12, 12
    for group in ET.fromstring(to_svg(EXAMPLES[example])).iter(f"{SVG}g"):
        box, text = group.find(f"{SVG}rect"), group.find(f"{SVG}text")
        if text is None or box is None or "id" not in group.attrib:
            continue
        width, height = float(box.attrib["width"]), float(box.attrib["height"])
        if "transform" in text.attrib:
            width, height = height, width
        assert len(text.text or "") * character <= width
        assert line <= height


def test_svg_numbers_each_of_sixty_four_segments() -> None:
    groups = ET.fromstring(to_svg(Layout.create(64, 0))).iter(f"{SVG}g")
    captions = [group.findtext(f"{SVG}text") or "" for group in groups if "id" in group.attrib]
    assert [caption.split()[0] for caption in captions] == [str(key) for key in range(64)]


def test_svg_stands_on_its_own_and_knows_light_and_dark() -> None:
    svg = to_svg(split_merge_split(), HOSTILE)
    assert "prefers-color-scheme:dark" in svg
    assert not re.search(r"<script|href|url\(|@import", svg)


def test_svg_shortens_a_title_that_is_wider_than_the_page_and_keeps_it_whole_in_the_tooltip() -> None:
    name = "topic://t/n/" + "日x" * 200
    root = ET.fromstring(to_svg(Layout.create(1, 0), name))
    assert root.findtext(f"{SVG}title") == name
    shown = next(text for text in root.iter(f"{SVG}text") if text.attrib.get("class") == "title").text or ""
    assert shown.endswith("…")
    assert len(shown) < 90


def test_svg_makes_room_for_long_epochs() -> None:
    layout = Layout(2**62, 1, {0: replace(Layout.create(1, 0).segments[0], created_at_epoch=2**62)})
    root = ET.fromstring(to_svg(layout))
    label = next(t for t in root.iter(f"{SVG}text") if (t.text or "").startswith("epoch 4611686018427387904"))
    texts = [t for t in root.iter(f"{SVG}text") if t.attrib.get("text-anchor") == "end"]
    assert label is not None
    assert all(float(t.attrib["x"]) > len(t.text or "") * 7.2 for t in texts)


@pytest.mark.parametrize("name", ["topic://public/default/orders", HOSTILE, ""])
@pytest.mark.parametrize("example", EXAMPLES)
def test_dot_is_balanced_with_one_node_per_segment_and_one_edge_per_link(example: str, name: str) -> None:
    layout = EXAMPLES[example]
    dot = to_dot(layout, name)
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", dot)
    assert '"' not in bare
    assert "\\" not in bare
    assert (bare.count("{"), bare.count("}")) == (1, 1)
    assert (bare.count("["), bare.count("]")) == (len(layout.segments) + 2,) * 2
    nodes = re.findall(r'^  s(\d+) \[label="segment \1\\n', dot, re.MULTILINE)
    assert nodes == [str(key) for key in layout.segments]
    edges = re.findall(r"^  s(\d+) -> s(\d+);$", dot, re.MULTILINE)
    assert sorted(edges) == links(layout)


@pytest.mark.parametrize("name", ["topic://public/default/orders", HOSTILE, ""])
@pytest.mark.parametrize("example", EXAMPLES)
def test_mermaid_is_balanced_with_one_node_per_segment_and_one_edge_per_link(example: str, name: str) -> None:
    layout = EXAMPLES[example]
    lines = to_mermaid(layout, name).splitlines()
    assert lines[0] == "flowchart TB"
    assert all(line.count('"') in (0, 2) for line in lines)
    words = [line.split()[0] for line in lines]
    assert (words.count("subgraph"), words.count("end")) == (1, 1)
    nodes = re.findall(r'^    s(\d+)\["segment \1<br/>.*"\]:::(?:active|sealed)$', "\n".join(lines), re.MULTILINE)
    assert nodes == [str(key) for key in layout.segments]
    edges = re.findall(r"^    s(\d+) --> s(\d+)$", "\n".join(lines), re.MULTILINE)
    assert sorted(edges) == links(layout)


def links(layout: Layout) -> list[tuple[str, str]]:
    return sorted((str(p), str(key)) for key, segment in layout.segments.items() for p in segment.parent_ids)


def test_mermaid_writes_marks_of_a_name_as_numbers() -> None:
    frame = to_mermaid(Layout.create(1, 0), HOSTILE).splitlines()[1]
    title = frame.removeprefix('  subgraph layout["').split("<br/>epoch")[0]
    assert title.startswith("topic://t/n/a#34;b#92;#34;#60;script#62;#38;amp#59;#35;34#59;#96;")
    assert not set(title) & set('"<>`[]{}()&\\%')
    assert "日本" in title


def test_dot_keeps_entities_of_a_name_from_being_read() -> None:
    assert "&amp;amp;" in to_dot(Layout.create(1, 0), HOSTILE)
