"""``tunegym recommend``: the settings to use."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from tunegym.app.run import as_scenario
from tunegym.cli.terminal import console, guarded, print_json, print_table, say, warn
from tunegym.core.errors import ConfigError, Problem, TunegymError
from tunegym.core.files import dump_toml
from tunegym.core.text import escaped
from tunegym.tuning.answers.contexts import WHERE
from tunegym.tuning.answers.recommendation import FROM_POLICY, Recommendation
from tunegym.tuning.model.space import nested
from tunegym.tuning.model.summary import Table
from tunegym.tuning.model.values import counted, number, pairs, spelled
from tunegym.tuning.reports.results import SCENARIO, find_run, recommend
from tunegym.tuning.reports.trials import BEST


def main(folder: Path, context: list[str], experiment: str | None, *, as_toml: bool, as_json: bool) -> int:
    """Show the settings to use, and how sure one can be of them."""
    return guarded(lambda: _recommend(folder, context, experiment, as_toml=as_toml, as_json=as_json))


def _recommend(folder: Path, context: list[str], experiment: str | None, *, as_toml: bool, as_json: bool) -> int:
    if as_toml and as_json:
        raise ConfigError("tunegym recommend", [Problem("", "--toml or --json, not both", hint="leave one out")])
    found = recommend(folder, parsed(context), experiment)
    if as_json:
        print_json(found.as_dict())
    elif as_toml:
        fixed = _fixed(find_run(folder), found.experiment)
        console().out(dump_toml(_document(found, fixed)).rstrip("\n"), highlight=False)
    else:
        by = ", as its policy chooses them" if found.source == FROM_POLICY else ""
        say(f"{found.experiment}: settings to use{_there(found)}{by}")
        rows = tuple((escaped(name), spelled(value)) for name, value in found.action.items())
        print_table(Table("", ("knob", "value"), rows, ("knob", "value")), fold=True)
        say(_sureness(found))
    for warning in _warnings(found):
        console(stderr=True).print(warning, soft_wrap=True)
    return 0


def parsed(texts: list[str]) -> dict[str, Any]:
    """``KEY=VALUE`` strings as a context; a value that is no TOML is a string."""
    context: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            problem = Problem("", "this is not KEY=VALUE", spelled(text), hint="write for example --context load=0.5")
            raise ConfigError(WHERE, [problem])
        if name in context:
            problem = Problem(name, "it is given twice", spelled(text), hint="give it once")
            raise ConfigError(WHERE, [problem])
        context[name] = _value(value.strip())
    return context


def _value(text: str) -> Any:
    try:
        document = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        return text
    return document["value"] if document.keys() == {"value"} else text


def _sureness(found: Recommendation) -> str:
    """One line: what was measured with these settings, how often, and how much it varied."""
    if not found.measured:
        return f"never measured{_there(found)}"
    parts = []
    for name, mean in found.mean.items():
        spread = found.spread.get(name)
        parts.append(f"{name} {number(mean)}" + (f" ±{spread:.2g}" if spread else ""))
    return ", ".join([*parts, f"from {counted(found.measured, 'sample')}", f"first in trial {found.setting.first}"])


def _there(found: Recommendation) -> str:
    return f" at {pairs(found.context)}" if found.context else ""


def _warnings(found: Recommendation) -> list[str]:
    """What speaks against relying on it."""
    warnings = [f"note: {found.note}"] if found.note is not None else []
    if found.violation:
        warnings.append("warning: these settings exceed the objectives' limits")
    if not found.measured:
        warnings.append(f"warning: these settings were never measured{_there(found)}: measure them before you use them")
    elif found.measured == 1:
        warnings.append("warning: it was measured only once, so how much it varies is not known")
    if found.failed:
        times = "once" if found.failed == 1 else f"{found.failed} times"
        warnings.append(f"warning: these settings also failed {times}")
    return warnings


def _document(found: Recommendation, fixed: dict[str, Any]) -> dict[str, Any]:
    """The table ``best`` of a ``best.toml``, with what was asked for and where it comes from."""
    best = found.setting.as_dict()
    best.pop("context", None)
    best["source"] = found.source
    if found.note is not None:
        best["note"] = found.note
    if fixed:
        best["fixed"] = fixed
    if found.context:
        best["context"] = nested(found.context)
    return {"best": best}


def _fixed(run: Path, experiment: str) -> dict[str, Any]:
    """The fixed parameters: from ``best.toml``, or from the scenario where a run was cut off before it had one."""
    try:
        best = tomllib.loads((run / experiment / BEST).read_text(encoding="utf-8"))
        return best["best"].get("fixed", {})
    except (OSError, ValueError, KeyError):
        pass
    try:
        scenario = as_scenario(run / SCENARIO)
        return nested(next(one.space.fixed for one in scenario.experiments if one.name == experiment))
    except (TunegymError, OSError) as error:
        warn(f"the fixed parameters are not known: {error}")
        return {}
