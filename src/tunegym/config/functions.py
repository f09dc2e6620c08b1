"""Constraints and rewards: what they name is looked up at load, so that nothing is missing later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tunegym.config.catalog import Catalog
from tunegym.config.findings import Findings
from tunegym.config.naming import unknown
from tunegym.config.schema import ExperimentTable
from tunegym.core.errors import UnresolvedReferenceError
from tunegym.core.references import callable_by_name, is_reference, resolve
from tunegym.tuning.model import expression
from tunegym.tuning.model.expression import ExpressionConstraint, FunctionConstraint
from tunegym.tuning.model.scenario import BUILTIN_METRICS

Constraint: TypeAlias = ExpressionConstraint | FunctionConstraint
_CONSTRAINT = 'an expression such as "threads * 2 <= 8", or "module:function"'


def constraints(texts: Sequence[str], names: Sequence[str], folder: Path, findings: Findings) -> tuple[Constraint, ...]:
    """Each text as an expression over ``names``, or as a function that can be called with them."""
    parsed: list[Constraint] = []
    for index, text in enumerate(texts):
        below = findings.at(index)
        if is_reference(text):
            function = _function(text, names, folder, below, _CONSTRAINT)
            if function is not None:
                parsed.append(FunctionConstraint(text, function))
            continue
        try:
            parsed.append(ExpressionConstraint(text, expression.parse(text, names)))
        except expression.ExpressionError as error:
            hint = error.hint or "compare parameters, such as threads * 2 <= 8"
            below.add(f"this constraint {_clause(error.message)}", found=text, allowed=_CONSTRAINT, hint=hint)

    return tuple(parsed)


def metric_names(table: ExperimentTable) -> list[str]:
    """Every metric that jobs of the experiment are known to give."""
    judged = [objective.get("metric") for objective in table.objectives or ()]
    named = [*(table.agent_metrics or ()), *filter(None, judged), *table.metrics, *BUILTIN_METRICS]
    return list(dict.fromkeys(named))


def check_reward(name: str | None, metrics: Sequence[str], catalog: Catalog, folder: Path, findings: Findings) -> None:
    """Refuse a reward that is neither known nor a function of the experiment's metrics."""
    if name is None:
        return
    if is_reference(name):
        _function(name, metrics, folder, findings, 'a reward\'s name, or "module:function"')
    elif name not in catalog.names("rewards"):
        unknown(catalog, "rewards", name, findings)


def _clause(message: str) -> str:
    """An expression's message may begin with its verb; any must read well after a subject."""
    return message if message.startswith(("is ", "has ", "takes ")) else f"can't be used: {message}"


def _function(
    reference: str, names: Sequence[str], folder: Path, findings: Findings, allowed: str
) -> Callable[[Mapping[str, Any]], Any] | None:
    try:
        function: Callable[..., Any] = resolve(reference, (str(folder),))
        if callable(function):
            return callable_by_name(function, names)
        what, hint = "this is not a function", "name a function of the module"
    except UnresolvedReferenceError as error:
        what, hint = error.message, error.hint or "check the module's and the function's name"
    findings.add(what, found=reference, allowed=allowed, hint=hint)
    return None
