from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.report.markup import Markup, join, tag


def test_element_with_attributes_and_children() -> None:
    assert (
        tag("g", "x", tag("rect", x=2.0), class_="a", stroke_width=1.5, id=None)
        == '<g class="a" stroke-width="1.5">x<rect x="2"/></g>'
    )


def test_text_is_escaped_and_markup_is_not() -> None:
    assert join("<b>", Markup("<b></b>")) == "&lt;b&gt;<b></b>"
    assert tag("p", "&", title='"') == '<p title="&quot;">&amp;</p>'


def test_empty_html_element_is_closed() -> None:
    assert tag("div") == "<div></div>"


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_any_text_comes_back_from_a_parser(content: str) -> None:
    element = ElementTree.fromstring(tag("p", content, title=content))

    assert (element.text or "", element.get("title")) == (content, content)
