"""Print how heavy the source is: files and lines per package, modules with one importer, and doubtful names."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src"
NOUNS = {"encoding", "sharding", "testing", "ranking", "staleness", "feed"}
PARTICIPLE = re.compile(r"[a-z_]*(ing|ed)$")
SMALL = 60


def main() -> None:
    """Print the tables."""
    files = {path: path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))}
    lines = {path: text.count("\n") for path, text in files.items()}
    names = {_name(path): path for path in files}
    print(f"src: {len(files)} files, {sum(lines.values()):,} lines")
    by_package: dict[str, list[Path]] = defaultdict(list)
    for path in files:
        parts = path.relative_to(ROOT / "tunegym").parts[:-1]
        by_package["/".join(parts[:2]) or "."].append(path)
    for package, paths in sorted(by_package.items()):
        print(f"  {package:24}{len(paths):4} files{sum(lines[path] for path in paths):8,} lines")
    tests = list((ROOT.parent / "tests").rglob("*.py"))
    print(
        f"tests: {len(tests)} files, {sum(path.read_text(encoding='utf-8').count(chr(10)) for path in tests):,} lines"
    )

    importers: Counter[str] = Counter()
    for text in files.values():
        importers.update(_imports(text, names))
    modules = [path for path in files if path.name != "__init__.py"]
    single = [path for path in modules if importers[_name(path)] == 1]
    small = [path for path in modules if lines[path] < SMALL]
    doubtful = [path for path in modules if PARTICIPLE.match(path.stem) and path.stem not in NOUNS]
    _show(f"modules with one importer: {len(single)}", single)
    _show(f"modules under {SMALL} lines: {len(small)}", small)
    _show(f"modules named by a participle: {len(doubtful)}", doubtful)
    classes: dict[str, list[Path]] = defaultdict(list)
    for path, text in files.items():
        for name in re.findall(r"^class (\w+)", text, re.MULTILINE):
            classes[name].append(path)
    twice = {name: paths for name, paths in classes.items() if len(paths) > 1}
    print(f"class names with two meanings: {len(twice)}")
    for name, paths in sorted(twice.items()):
        print(f"  {name}: {', '.join(str(path.relative_to(ROOT / 'tunegym')) for path in paths)}")


def _show(title: str, paths: list[Path]) -> None:
    print(title)
    for path in paths:
        print(f"  {path.relative_to(ROOT / 'tunegym')}")


def _name(path: Path) -> str:
    return ".".join(path.with_suffix("").relative_to(ROOT).parts).removesuffix(".__init__")


def _imports(text: str, names: dict[str, Path]) -> set[str]:
    """The modules of ours that a module imports, by any statement."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # lazy references: "package.module:Name"
            found.add(node.value.partition(":")[0])
    return found & names.keys()


if __name__ == "__main__":
    main()
