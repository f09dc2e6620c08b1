from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tunegym.tuning.workloads.template import Template, plain


def render(text: str, **values: Any) -> str:
    return Template.parse(text).render(values)


def shell(command: str) -> str:
    return subprocess.run(["sh", "-c", command], capture_output=True, check=True).stdout.decode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run {a} {b}", "run 4 'x y'"),
        ("{{a}} }} } {a}", "{a} } } 4"),
        ("{{{a}}}", "{4}"),
        ("{a}{a}", "44"),
        ("{f} {t} {n} {l} {d}", "0.1 true -3 1 'a b' c '{\"k\": [1, null]}'"),
        ("{server.max-threads}", "8"),
        ("awk '{{print $1}}'", "awk '{print $1}'"),
        ('run {b:raw} {l:raw} "{b:raw}"', 'run x y 1 a b c "x y"'),
        ("run {t:--fast} {no:-v} {no:--log=all}.", "run --fast  ."),
        ("", ""),
    ],
)
def test_render(text: str, expected: str) -> None:
    values = {
        "a": 4,
        "b": "x y",
        "f": 0.1,
        "t": True,
        "no": False,
        "n": -3,
        "l": [1, "a b", "c"],
        "server.max-threads": 8,
    }
    assert Template.parse(text).render({**values, "no": False, "d": {"k": [1, None]}}) == expected


def test_names() -> None:
    assert Template.parse("{b} {{c}} {a.x} {b}").names == ("b", "a.x")


CONTEXTS = [
    "printf %s {v}", 'printf %s "{v}"', "printf %s '{v}'", 'printf %s "$(printf %s {v}; echo .)"',
    "printf %s \"$(printf %s '{v}'; echo .)\"", "printf %s ''{v}''", "# don't\nprintf %s {v}",
    "(printf %s {v})",
    "printf %s \\''{v}'\\'", "printf %s \"\\\"{v}\"",
]  # fmt: skip


@example("$(touch /tmp/never) `id` a'b\"c; exit 3 *")
@example("\\")
@example("-n")
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=20))
@settings(max_examples=25, deadline=None)
def test_the_shell_gives_a_value_back(value: str) -> None:
    expected = [value, value, value, f"{value}.", f"{value}.", value, value, value, f"'{value}'", f'"{value}']
    assert [shell(render(text, v=value)) for text in CONTEXTS] == expected


def test_values_that_are_not_text() -> None:
    assert shell(render("printf '<%s>' {v}", v=["a b", "c'd", 1])) == "<a b><c'd><1>"
    assert shell(render('printf "<%s>" "{v}"', v=["a b", 1])) == "<a b 1>"
    table = {"a": ["it's", 1.5, True]}
    assert json.loads(shell(render("printf %s {v}", v=table))) == table
    assert [plain(value) for value in (True, 1, 1.0, "a b", [1, "x y"], 1e-7)] == [
        *("true", "1", "1.0", "a b", "1 x y", "1e-07")
    ]
