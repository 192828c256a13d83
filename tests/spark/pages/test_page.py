"""The page: whole, by itself, and with everything escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from spark.pages.charts import Axis, Curve, line_chart
from spark.pages.page import Note, Page, Section, Table, Tile, Tiles

EVIL = "<img src=x onerror=alert(1)>\"'&"


class _Tags(HTMLParser):
    """Which tags are opened and closed, and every attribute."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += attrs
        if tag not in ("meta", "path", "rect", "circle") or tag in ("rect", "circle"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(text: str = "text") -> Page:
    chart = line_chart(text, [Curve(text, ((0, 1), (1, 2))), Curve("b", ((0, 1),))], Axis(text), Axis(text), note=text)
    return Page(
        title=text,
        subtitle=text,
        verdict=Note(text, state="good"),
        sections=(
            Section(
                text,
                (
                    Tiles((Tile(text, text, text, "bad"),)),
                    chart,
                    Table((text, "count", "share"), ((text, 1_234, None),), caption=text, numeric=("share",)),
                    Note(text),
                ),
                intro=text,
            ),
        ),
        footer=text,
    )


def test_every_tag_is_closed() -> None:
    assert _Tags(page().html()).open == []


def test_nothing_is_fetched_and_nothing_runs() -> None:
    html = page().html()
    tags = _Tags(html)
    assert not tags.seen & {"script", "link", "img", "iframe", "object", "embed", "base"}
    assert not [name for name, _ in tags.attributes if name.startswith("on") or name in ("src", "xlink:href")]
    assert not re.findall(r"url\(|@import|https?://", html)
    assert "default-src &#x27;none&#x27;" in html or "default-src 'none'" in html


def test_what_it_is_given_stays_text() -> None:
    tags = _Tags(page(EVIL).html())
    assert "img" not in tags.seen
    assert tags.open == []


def test_numbers_stand_to_the_right_and_what_is_not_known_is_a_dash() -> None:
    html = page().html()
    assert '<td class="n">1,234</td>' in html
    assert '<td class="n"><span class="none">–</span></td>' in html
    assert '<th class="n">share</th>' in html
