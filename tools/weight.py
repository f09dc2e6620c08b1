"""Print how heavy the source is: tokens and branches per package, branchy functions, and vague variables."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
WEIGHED = (tokenize.NAME, tokenize.OP, tokenize.NUMBER)
VAGUE = {"one", "found", "some", "at", "what", "place", "told", "here", "there", "rest"}
EMPTY = {"item", "obj", "thing", "entry", "val", "tmp", "res", "elem"}
MOST_BRANCHES = 12
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.Assert,
    ast.match_case,
)


def main() -> None:
    """Print the tables."""
    tokens, branches, vague = Counter[str](), Counter[str](), Counter[str]()
    branchy: list[tuple[int, str]] = []
    by_name = Counter[str]()
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        module = path.relative_to(SOURCE / "tunegym")
        package = "/".join(module.parts[:-1][:2]) or "."
        tokens[package] += count_tokens(text)
        branches[package] += count_branches(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in VAGUE | EMPTY:
                vague[package] += 1
                by_name[node.id] += 1
            if isinstance(node, FUNCTIONS) and count_branches(node) >= MOST_BRANCHES:
                branchy.append((count_branches(node) + 1, f"{module}:{node.lineno} {node.name}"))
    print(f"{'package':24}{'tokens':>9}{'branches':>10}{'vague':>7}")
    for package in [*sorted(tokens), "all"]:
        columns = [count.total() if package == "all" else count[package] for count in (tokens, branches, vague)]
        print(f"{package:24}{columns[0]:9,}{columns[1]:10,}{columns[2]:7,}")
    print(f"functions with more than {MOST_BRANCHES} branches: {len(branchy)}")
    for count, function in sorted(branchy, reverse=True):
        print(f"{count:5} {function}")
    print("vague variables: " + ", ".join(f"{name} {count}" for name, count in by_name.most_common()))


def count_tokens(text: str) -> int:
    """Return the number of names, operators and numbers."""
    return sum(token.type in WEIGHED for token in tokenize.generate_tokens(io.StringIO(text).readline))


def count_branches(tree: ast.AST) -> int:
    """Return the number of branches, with boolean operators, comprehensions and conditional expressions."""
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, BRANCHES):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
    return count


if __name__ == "__main__":
    main()
