"""What a function consists of, read from a checkout without importing it."""

from __future__ import annotations

import ast
from pathlib import Path


def definitions(root: Path, target: str) -> dict[str, str]:
    """Source of a function and of whatever it uses of this repository, by ``module:name``; comments do not count.

    Args:
        root: a checkout.
        target: ``"package.module:attribute"``.
    """
    found: dict[str, str] = {}
    todo = [target]
    while todo:
        name = todo.pop()
        module, _, attribute = name.partition(":")
        tree = _parse(root, module)
        node = _top_level(tree).get(attribute) if tree else None
        if node is None or tree is None or name in found:
            continue
        if isinstance(node, ast.ImportFrom):
            alias = next(a for a in node.names if (a.asname or a.name) == attribute)
            todo.append(f"{node.module}:{alias.name}")
            continue
        found[name] = ast.unparse(node)
        todo += [f"{module}:{n.id}" for n in ast.walk(node) if isinstance(n, ast.Name)]
    return found


def _parse(root: Path, module: str) -> ast.Module | None:
    """The module's source; None if it is not of this repository."""
    path = module.replace(".", "/")
    for file in (f"{path}.py", f"{path}/__init__.py"):
        for found in root.glob(f"packages/**/src/{file}"):
            return ast.parse(found.read_text(encoding="utf-8"))
    return None


def _top_level(tree: ast.Module) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            found |= {a.asname or a.name: node for a in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {n.id: node for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
    return found
