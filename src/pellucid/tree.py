"""Parameters as trees: a dict of arrays for a layer, a tuple for a combinator's children.

A key that starts with ``_`` is a buffer: it is stored and saved, but nothing is learned in it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["at", "flatten", "is_buffer", "learnable", "leaves", "map_leaves", "unflatten", "with_parts"]


def map_leaves(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply `function` to every array of `tree` (and those at the same place in `others`)."""
    if isinstance(tree, dict):
        return {k: map_leaves(function, v, *(o[k] for o in others)) for k, v in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map_leaves(function, *vs) for vs in zip(tree, *others, strict=True))
    return function(tree, *others)


def leaves(tree: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield (path, array) for every array of the tree, in a fixed order."""
    if isinstance(tree, dict):
        for key in sorted(tree):
            yield from leaves(tree[key], (*path, key))
    elif isinstance(tree, tuple):
        for key, child in enumerate(tree):
            yield from leaves(child, (*path, key))
    else:
        yield path, tree


def at(tree: Any, path: tuple[str | int, ...]) -> Any:
    """What the tree has at `path`."""
    return functools.reduce(operator.getitem, path, tree)


def with_parts(tree: Any, parts: dict[tuple[Any, ...], Any]) -> Any:
    """The tree with other things at some paths."""
    for (key, *rest), part in parts.items():
        new = with_parts(tree[key], {tuple(rest): part}) if rest else part
        tree = (*tree[:key], new, *tree[key + 1 :]) if isinstance(tree, tuple) else {**tree, key: new}
    return tree


def is_buffer(path: tuple[str | int, ...]) -> bool:
    return any(isinstance(key, str) and key.startswith("_") for key in path)


def learnable(tree: Any) -> bool:
    """Whether the tree holds anything that is learned."""
    return any(not is_buffer(path) for path, _ in leaves(tree))


def flatten(tree: Any, net: Any = None) -> dict[str, Any]:
    """Return ``{"0.W": array, ...}``; with `net`, named children appear under their names."""
    return {".".join(readable(path, net)): leaf for path, leaf in leaves(tree)}


def readable(path: tuple[str | int, ...], net: Any) -> Iterator[str]:
    for key in path:
        net = net.children[key] if isinstance(key, int) and net is not None else None
        yield net.name if net is not None and net.name else str(key)


def unflatten(tree: Any, flat: dict[str, Any], net: Any = None) -> Any:
    """Return `tree` with its arrays replaced by those of `flat` (the inverse of `flatten`)."""
    names = iter(flatten(tree, net))

    def rebuild(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: rebuild(node[key]) for key in sorted(node)}
        if isinstance(node, tuple):
            return tuple(rebuild(child) for child in node)
        return flat[next(names)]

    return rebuild(tree)
