"""How a trial's parameters reach its job: as words of a command, arguments of a function, or environment variables.

A command template is text with ``{parameter}`` placeholders, filled with values quoted for the shell. A parameter whose
address begins with ``extra_env_vars.`` is an environment variable instead.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tunegym.core.errors import Problem, TunegymError
from tunegym.core.text import closest
from tunegym.tuning.model.scenario import Experiment
from tunegym.tuning.model.space import Choice
from tunegym.tuning.model.values import spelled

_ADDRESS = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)(\}?)")
_IN_DOUBLE = re.compile(r'(["$`\\])')
_LITERAL_BRACE = "for a literal brace write {{ and }}"

Quotes: TypeAlias = Literal["plain", "single", "double"]


class TemplateError(TunegymError):
    """A template that can't be understood, or a value that no shell can be given."""

    def __init__(self, message: str, *, position: int | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.position = position


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A place for one parameter's value, and the shell's quotes that it stands in."""

    name: str
    quotes: Quotes = "plain"


@dataclass(frozen=True, slots=True)
class Template:
    """Literal texts and placeholders, in order."""

    parts: tuple[str | Placeholder, ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """The template that ``text`` is.

        ``{name}`` is a placeholder, ``{{`` and ``}}`` are literal braces, and so is a lone ``}``.

        Raises:
            TemplateError: a ``{`` that is not closed or holds no parameter's address, with its position.
        """
        parts: list[str | Placeholder] = []
        lexer = _ShellLexer()
        for piece, is_name in _pieces(text):
            if is_name:
                parts.append(Placeholder(piece, lexer.quotes))
                lexer.feed("x")
            else:
                parts.append(piece)
                lexer.feed(piece)
        return cls(tuple(parts))

    @property
    def names(self) -> tuple[str, ...]:
        """The placeholders' names, each once, in the order of the text."""
        return tuple(dict.fromkeys(part.name for part in self.parts if isinstance(part, Placeholder)))

    def render(self, values: Mapping[str, Any]) -> str:
        """The command with every placeholder replaced: whatever the value, the shell sees it as it is.

        A placeholder outside of quotes becomes one word (a list: one word per element); inside of quotes the
        value is made safe for these quotes.

        Raises:
            TemplateError: a value holds a NUL character.
        """
        return "".join(
            [part if type(part) is str else _quoted(part, values[part.name]) for part in self.parts]  # type: ignore[union-attr]
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
    kind = type(value)
    if kind is int or kind is float:
        return repr(value)
    if place.quotes == "plain" and isinstance(value, list | tuple):
        return " ".join(shlex.quote(_without_nul(place.name, plain(item))) for item in value)
    text = _without_nul(place.name, plain(value))
    if place.quotes == "plain":
        return shlex.quote(text)
    if place.quotes == "single":
        return text.replace("'", "'\"'\"'")
    return _IN_DOUBLE.sub(r"\\\1", text)


def _without_nul(name: str, text: str) -> str:
    if "\0" in text:
        raise TemplateError(f"the value of {name} holds a NUL character", hint="no command line can hold one")
    return text


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Literal texts (braces unescaped) and placeholder names (marked True), in order."""
    literal: list[str] = []
    end = 0
    for token in _TOKEN.finditer(text):
        literal.append(text[end : token.start()])
        end = token.end()
        if token[0] in ("{{", "}}"):
            literal.append(token[0][0])
            continue
        _check(token)
        if joined := "".join(literal):
            yield joined, False
        literal = []
        yield token[1], True
    if rest := "".join([*literal, text[end:]]):
        yield rest, False


def _check(token: re.Match[str]) -> None:
    position = token.start()
    at = f"at position {position}"
    if not token[2]:
        raise TemplateError(f"the {{ {at} is never closed", position=position, hint=_LITERAL_BRACE)
    if not token[1]:
        raise TemplateError(f"the {{}} {at} names no parameter", position=position, hint=_LITERAL_BRACE)
    if not _ADDRESS.fullmatch(token[1]):
        what = f"{{{token[1]}}} {at} is no parameter's name"
        raise TemplateError(what, position=position, hint=_LITERAL_BRACE)


class _ShellLexer:
    """Follows a command's text and knows which quotes it is in. Here-documents are not followed."""

    def __init__(self) -> None:
        self._open: list[str] = []  # of ' " ` (
        self._previous = ""
        self._escaped = False
        self._comment = False

    @property
    def quotes(self) -> Quotes:
        top = self._open[-1] if self._open else ""
        return "single" if top == "'" else "double" if top == '"' else "plain"

    def feed(self, text: str) -> None:
        for character in text:
            self._step(character)
            self._previous = character

    def _step(self, character: str) -> None:
        quotes = self.quotes
        if self._comment:
            self._comment = character != "\n"
        elif quotes == "single":
            if character == "'":
                self._open.pop()
        elif self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character in '"`':
            self._toggle(character)
        elif quotes == "double":
            if character == "(" and self._previous == "$":  # a nested command has its own quotes
                self._open.append("(")
        elif character in "'(":
            self._open.append(character)
        elif character == ")" and self._open and self._open[-1] == "(":
            self._open.pop()
        elif character == "#" and self._previous in ("", " ", "\t", "\n", ";"):
            self._comment = True

    def _toggle(self, character: str) -> None:
        if self._open and self._open[-1] == character:
            self._open.pop()
        else:
            self._open.append(character)


# addresses --------------------------------------------------------------------------------------------

ENV_PREFIX = "extra_env_vars."
NUM_NODES = "num_nodes"
GIVEN = ("trial_dir", "scenario_dir", "step")
"""What every trial is given without being asked; no parameter may have these names."""
REPORT = "report"
"""What a callable is given as well."""


def key_path(address: str) -> str:
    """Where a parameter stands in its experiment's table."""
    return address if address == NUM_NODES or address.startswith(ENV_PREFIX) else f"cmd_args.{address}"


def variables(experiment: Experiment) -> tuple[tuple[str, str], ...]:
    """The addresses that become environment variables, each with the variable's name."""
    return tuple(
        (address, address.removeprefix(ENV_PREFIX))
        for address in experiment.parameter_names()
        if address.startswith(ENV_PREFIX)
    )


def example_variables(experiment: Experiment) -> tuple[tuple[str, str], ...]:
    """The environment variables that some trial has."""
    space = experiment.space
    domains = {**space.knobs, **{name: param.domain for name, param in experiment.env_params.params.items()}}
    first = {name: one.values[0] if isinstance(one, Choice) else one.snap(one.low) for name, one in domains.items()}
    values = {**first, **space.fixed}
    return tuple((variable, plain(values[address])) for address, variable in variables(experiment))


def varying_variables(experiment: Experiment) -> list[str]:
    """The addresses of environment variables that differ from trial to trial."""
    return [address for address, _ in variables(experiment) if address not in experiment.space.fixed]


def arguments(experiment: Experiment) -> list[str]:
    """The addresses that a command or a callable must use, since nothing else does.

    A fixed ``num_nodes`` is the runner's business; one that is tuned has to have an effect.
    """
    fixed_nodes = NUM_NODES in experiment.space.fixed
    return [
        address
        for address in experiment.parameter_names()
        if not address.startswith(ENV_PREFIX) and not (address == NUM_NODES and fixed_nodes)
    ]


def candidates(experiment: Experiment) -> list[tuple[str, Any]]:
    """Every value that the scenario spells out, with its address: fixed ones and those of lists."""
    found = list(experiment.space.fixed.items())
    domains = {**experiment.space.knobs, **{n: p.domain for n, p in experiment.env_params.params.items()}}
    for address, domain in domains.items():
        if isinstance(domain, Choice):
            found += [(address, value) for value in domain.values]
    return found


def problems(experiment: Experiment, given: Sequence[str] = GIVEN) -> list[Problem]:
    """What no workload can run: reserved names, impossible environment variables, NUL characters."""
    what = "is a reserved name: every trial is given it"
    found = [
        Problem(key_path(address), f"{address!r} {what}", hint="rename the parameter")
        for address in experiment.parameter_names()
        if address in given
    ]
    for address, variable in variables(experiment):
        if not variable or "=" in variable or "\0" in variable:
            found.append(Problem(key_path(address), f"{variable!r} can't be an environment variable", hint="rename it"))
    for address, value in candidates(experiment):
        if "\0" in str(value):
            found.append(
                Problem(
                    key_path(address),
                    "a value holds a NUL character, which no process can be given",
                    found=spelled(value),
                    hint="remove it",
                )
            )
    return found


def did_you_mean(word: str, names: list[str] | tuple[str, ...], otherwise: str) -> str:
    """The hint for a word that isn't one of ``names``."""
    near = closest(word, names)
    return f"did you mean {near!r}?" if near else otherwise
