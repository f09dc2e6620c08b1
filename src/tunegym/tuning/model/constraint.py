"""Constraints: which parameters may be tried at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunegym.tuning.model.expression import Expression
from tunegym.tuning.model.values import spelled


@dataclass(frozen=True)
class ExpressionConstraint:
    """Refuses parameters for which an expression doesn't hold, or has no value."""

    text: str
    expression: Expression

    def refuse(self, parameters: Mapping[str, Any]) -> str | None:
        """Why the parameters are refused, with the values the expression read; None if they may run."""
        try:
            if self.expression.evaluate(parameters):
                return None
        except Exception as error:
            return _unevaluated(self.text, error)
        values = ", ".join(f"{name} = {spelled(parameters[name])}" for name in self.expression.names)
        return f'constraint "{self.text}" ({values})' if values else f'constraint "{self.text}"'


@dataclass(frozen=True)
class FunctionConstraint:
    """Refuses parameters for which a user's function returns false, or raises.

    ``function`` is called with the parameters by address; ``core.references.callable_by_name`` makes one from
    a function with named parameters.
    """

    reference: str
    function: Callable[[Mapping[str, Any]], Any] = field(repr=False)

    def refuse(self, parameters: Mapping[str, Any]) -> str | None:
        """Why the parameters are refused; None if they may run."""
        try:
            answer = self.function(parameters)
            if hasattr(answer, "item"):  # numpy's own booleans
                answer = answer.item()
            if not isinstance(answer, bool):
                raise TypeError(f"it returned {answer!r}, not True or False")
        except (Exception, SystemExit) as error:  # a user's code may raise whatever it likes
            return _unevaluated(self.reference, error)
        return None if answer else f'constraint "{self.reference}"'


def _unevaluated(text: str, error: BaseException) -> str:
    return f'constraint "{text}" could not be evaluated: {type(error).__name__}: {error}'
