"""What the dashboard relies on in NiceGUI beyond its documented interface; pyproject.toml caps its version."""

from __future__ import annotations

from nicegui import client
from nicegui.element import Element
from nicegui.elements import echart

from openclaw_rl.dashboard.app import _keep_inline_scripts_apart


def test_the_page_template_has_what_is_replaced_in_it() -> None:
    """The nonce of inline scripts, language, theme, and the two sentences of a lost connection."""
    _keep_inline_scripts_apart()
    environment = client.templates.env
    assert environment.loader is not None
    source, _, _ = environment.loader.get_source(environment, "index.html")
    assert source.count("<script") == source.count('nonce="{{ request.state.nonce }}"') > 0
    for state in ("dark", "language", "lost", "reconnecting"):
        assert f"{{{{ request.state.{state} }}}}" in source, state


def test_props_are_a_mapping_that_can_be_changed() -> None:
    from nicegui.props import Props

    assert isinstance(Element.props, property) and issubclass(Props, dict)


def test_the_drawing_library_is_where_our_chart_imports_it_from() -> None:
    from openclaw_rl.dashboard.charts import _DIST

    assert str(_DIST).startswith(str(echart.__file__).rpartition("/")[0]) and _DIST.is_dir()
