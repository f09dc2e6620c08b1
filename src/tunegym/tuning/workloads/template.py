"""How a trial's parameters reach its job: as words of a command, arguments of a function, or environment variables.

A command template is text with placeholders. ``{parameter}`` is a value quoted for the shell, ``{parameter:raw}`` its
bare text, and ``{parameter:--flag}`` the flag if the parameter is true, else nothing. A parameter whose address begins
with ``extra_env_vars.`` is an environment variable instead.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tunegym.core.errors import Problem, TunegymError
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.space import Choice, Range

_ADDRESS = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)(\}?)")
_FLAG = re.compile(r"--?[A-Za-z][^\s'\"]*")
_IN_DOUBLE = re.compile(r'(["$`\\])')


RAW = "raw"


class TemplateError(TunegymError):
    """A template that can't be understood."""


class Placeholder(NamedTuple):
    """A place for one parameter's value."""

    name: str
    form: str  # empty for the quoted value, ``raw`` for its bare text, else the flag that stands for true
    quotes: str  # the shell's quotes around it: ``'``, ``"`` or none


@dataclass(frozen=True, slots=True)
class Template:
    """Literal texts and placeholders, in order."""

    parts: tuple[str | Placeholder, ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Parse a template.

        ``{name}``, ``{name:raw}`` and ``{name:--flag}`` are placeholders, ``{{`` and ``}}`` are literal braces, and so
        is a lone ``}``.

        Raises:
            TemplateError: a ``{`` that is not closed or holds no parameter's address or form, with its position.
        """
        parts: list[str | Placeholder] = []
        lexer = _ShellLexer()
        end = 0
        for token in _TOKEN.finditer(text):
            literal = text[end : token.start()] + (token[0][0] if token[1] is None else "")
            lexer.feed(literal)
            parts.append(literal)
            end = token.end()
            if token[1] is not None:
                parts.append(Placeholder(*_checked(token), lexer.quotes))
                lexer.feed("x")
        return cls((*parts, text[end:]))

    @property
    def names(self) -> tuple[str, ...]:
        """The placeholders' names, each once, in the order of the text."""
        return tuple(dict.fromkeys(part.name for part in self.parts if isinstance(part, Placeholder)))

    def render(self, values: Mapping[str, Any]) -> str:
        """The command with every placeholder replaced: whatever the value, the shell sees it as it is.

        A placeholder outside of quotes becomes one word (a list: one word per element). Raw text is inserted as it is.
        """
        return "".join(
            [_quoted(part, values[part.name]) if isinstance(part, Placeholder) else part for part in self.parts]
        )


def plain(value: Any) -> str:
    """A value's spelling in commands and environment variables, without any quotes."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return " ".join(plain(item) for item in value)
    return json.dumps(value)


def _quoted(place: Placeholder, value: Any) -> str:
    if place.form:
        return plain(value) if place.form == RAW else place.form if value is True else ""
    words = [plain(item) for item in value] if isinstance(value, list | tuple) else [plain(value)]
    if not place.quotes:
        return " ".join(shlex.quote(word) for word in words)
    text = " ".join(words)
    return text.replace("'", "'\"'\"'") if place.quotes == "'" else _IN_DOUBLE.sub(r"\\\1", text)


def _checked(token: re.Match[str]) -> tuple[str, str]:
    """The placeholder's name and form."""
    at = f"at position {token.start()}"
    name, colon, form = token[1].partition(":")
    if not token[2]:
        what = f"the {{ {at} is never closed"
    elif not token[1]:
        what = f"the {{}} {at} names no parameter"
    elif not _ADDRESS.fullmatch(name):
        what = f"{{{token[1]}}} {at} is no parameter's name"
    elif colon and form != RAW and not _FLAG.fullmatch(form):
        hint = f"write {{{name}:raw}} for unquoted text, {{{name}:--flag}} for a flag, {{{{ and }}}} for braces"
        raise TemplateError(f"{{{token[1]}}} {at} has an unknown form", hint=hint)
    else:
        return name, form
    raise TemplateError(what, hint="for a literal brace write {{ and }}")


class _ShellLexer:
    """Follows a command's text and knows which quotes it is in. Here-documents are not followed."""

    def __init__(self) -> None:
        self._open: list[str] = []  # of ' " ` (
        self._previous = ""
        self._escaped = False
        self._comment = False

    @property
    def quotes(self) -> str:
        return self._open[-1] if self._open and self._open[-1] in "'\"" else ""

    def feed(self, text: str) -> None:
        for character in text:
            self._step(character)
            self._previous = character

    def _step(self, character: str) -> None:
        top = self._open[-1] if self._open else ""
        if self._comment:
            self._comment = character != "\n"
        elif self._escaped:
            self._escaped = False
        elif character == (")" if top == "(" else top):
            self._open.pop()
        elif top == "'":
            return
        elif character == "\\":
            self._escaped = True
        elif top == '"':
            if character == "`" or (character == "(" and self._previous == "$"):  # has its own quotes
                self._open.append(character)
        elif character in "'\"`(":
            self._open.append(character)
        elif character == "#" and self._previous in ("", " ", "\t", "\n", ";"):
            self._comment = True


# addresses --------------------------------------------------------------------------------------------

ENV_PREFIX = "extra_env_vars."
NUM_NODES = "num_nodes"
GIVEN = ("trial_dir", "scenario_dir", "step")
"""Given to every trial; no parameter may have these names."""
REPORT = "report"
"""Given to a callable as well."""


def key_path(address: str) -> str:
    """The parameter's key in its experiment's table."""
    return address if address == NUM_NODES or address.startswith(ENV_PREFIX) else f"cmd_args.{address}"


def variables(experiment: Experiment) -> tuple[tuple[str, str], ...]:
    """The addresses that become environment variables, each with the variable's name."""
    names = [name for name in experiment.parameter_names() if name.startswith(ENV_PREFIX)]
    return tuple((address, address.removeprefix(ENV_PREFIX)) for address in names)


def example_variables(experiment: Experiment) -> tuple[tuple[str, str], ...]:
    """The environment variables that some trial has."""
    firsts = {
        name: one.values[0] if isinstance(one, Choice) else one.snap(one.low) for name, one in _domains(experiment)
    }
    values = {**firsts, **experiment.space.fixed}
    return tuple((variable, plain(values[address])) for address, variable in variables(experiment))


def arguments(experiment: Experiment) -> list[str]:
    """The addresses that a command or a callable must use, since nothing else does.

    A fixed ``num_nodes`` is the runner's business; one that is tuned has to have an effect.
    """
    fixed_nodes = NUM_NODES in experiment.space.fixed
    names = experiment.parameter_names()
    return [name for name in names if not name.startswith(ENV_PREFIX) and not (name == NUM_NODES and fixed_nodes)]


def candidates(experiment: Experiment) -> list[tuple[str, Any]]:
    """Every value that the scenario spells out, with its address: fixed ones and those of lists."""
    lists = [(name, domain.values) for name, domain in _domains(experiment) if isinstance(domain, Choice)]
    return [*experiment.space.fixed.items(), *((name, value) for name, values in lists for value in values)]


def _domains(experiment: Experiment) -> list[tuple[str, Choice | Range]]:
    drawn = [(name, param.domain) for name, param in experiment.env_params.params.items()]
    return [*experiment.space.knobs.items(), *drawn]


def problems(experiment: Experiment, given: Sequence[str] = GIVEN) -> list[Problem]:
    """Problems for every workload: reserved names."""
    return [
        Problem(key_path(name), f"{name!r} is a reserved name: every trial is given it", hint="rename the parameter")
        for name in experiment.parameter_names()
        if name in given
    ]
