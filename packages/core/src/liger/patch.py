"""Carries out a plan and undoes it. All or nothing in both directions."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from liger.errors import UnpatchConflict
from liger.swap import Spec, is_swapped, swapped_class

if TYPE_CHECKING:
    from torch.nn import Module

JOURNAL = "_liger_journal"
PENDING = "_liger_pending"
"""Marks an instance that ``liger.construct`` will patch at its first forward."""
TENSOR_PARALLEL = "transformers.distributed."
"""Where the forwards come from that transformers' plans for tensor parallelism put on instances."""
MISSING = object()


class Action(NamedTuple):
    """One module to swap."""

    path: str
    module: Any
    spec: Spec
    attributes: dict[str, Any]


class Entry:
    """One slot that was changed. It lives in the patched model and copies with it, module references included."""

    __slots__ = ("attributes", "forward", "installed", "module", "old_forward", "path")

    def __init__(
        self,
        path: str,
        module: Module,
        installed: type,
        attributes: dict[str, Any],
        old_forward: Any = None,
        forward: Any = None,
    ) -> None:
        self.path, self.module, self.installed = path, module, installed
        self.attributes, self.old_forward, self.forward = attributes, old_forward, forward

    def __getstate__(self) -> tuple[Any, ...]:
        cls: Any = self.installed  # a class made at run time cannot be pickled by name
        forward = self.forward is not None  # a method of the module would be looked up in a copy that is half made
        made_of = cls.__liger_original__, cls.__liger_spec__
        return self.path, self.module, *made_of, self.attributes, self.old_forward, forward

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.path, self.module, original, spec, self.attributes, self.old_forward, forward = state
        self.installed = swapped_class(original, spec)
        self.forward = types.MethodType(original.forward, self.module) if forward else None


def apply(root: Module, actions: list[Action]) -> list[Entry]:
    """Swap every module of ``actions`` and return what was done; an error in the middle leaves ``root`` as it was."""
    done: list[Entry] = []
    try:
        for action in actions:
            done.append(_swap(action))
    except BaseException:
        for entry in reversed(done):
            _restore(entry)
        raise
    if done:
        root.__dict__[JOURNAL] = [*root.__dict__.get(JOURNAL, ()), *done]
    return done


def _swap(action: Action) -> Entry:
    module = action.module
    installed = swapped_class(type(module), action.spec)
    old_forward = module.__dict__.get("_old_forward")
    forward = module.__dict__.pop("forward") if has_own_forward(module) else None
    entry = Entry(action.path, module, installed, action.attributes, old_forward, forward)
    module.__class__ = installed
    module.__dict__.update(action.attributes)
    ours = types.MethodType(installed.forward, module)  # type: ignore[attr-defined]
    if old_forward is not None:  # accelerate calls this one; a class swap beneath it would never be reached
        module.__dict__["_old_forward"] = ours
    if (cell := tensor_parallel(module)) is not None:  # and the plans of transformers this one
        cell.cell_contents = ours
    return entry


def undo(root: Module, done: list[Entry] | None = None) -> None:
    """Put modules below ``root`` back: those of ``done``, as ``apply`` returned it, and what came of them; or all.

    That is copies of them, and modules patched since that share an attribute with one: an adapter put around a head.

    Raises:
        UnpatchConflict: a slot no longer holds what was installed. Nothing is changed then.
    """
    entries = list(_entries(root))
    if done is not None:
        modules, classes = {id(e.module) for e in done}, {e.installed for e in done}
        shared = {id(value) for e in done for value in e.attributes.values()}
        journaled = {id(e.module) for m in root.modules() for e in m.__dict__.get(JOURNAL, ())}
        entries = [
            e
            for e in entries
            if id(e.module) in modules
            or (id(e.module) not in journaled and (e.installed in classes or not shared.isdisjoint(_held(e))))
        ]
    conflicts = [c for entry in entries for c in _conflicts(entry)]
    if conflicts:
        raise UnpatchConflict(
            "nothing was undone: these slots no longer hold what Liger put there; undo the other change first\n"
            + "\n".join(f"  {c}" for c in conflicts)
        )
    for entry in entries:
        _restore(entry)
    _forget(root, {id(e.module) for e in entries})


def _held(entry: Entry) -> set[int]:
    return {id(value) for value in entry.attributes.values()}


def _forget(root: Module, undone: set[int]) -> None:
    for module in root.modules():
        left = [e for e in module.__dict__.pop(JOURNAL, ()) if id(e.module) not in undone]
        if left:
            module.__dict__[JOURNAL] = left


def settle(root: Module) -> None:
    """Turn instances marked before construction back into plain ones: from here on ``root`` is patched as it stands."""
    for module in root.modules():
        if PENDING in module.__dict__:
            _restore(Entry("", module, type(module), {PENDING: None}))


def swapped_modules(root: Module) -> Iterator[tuple[str, Module]]:
    """The modules below ``root`` whose class, or a base of it, is ours."""
    for path, module in root.named_modules():
        if any(is_swapped(c) for c in type(module).__mro__):
            yield path, module


def _entries(root: Module) -> Iterable[Entry]:
    """What the journals say, plus swapped modules that no journal knows: copies that PEFT or a user made of one."""
    found: dict[int, Entry] = {}
    for module in root.modules():
        for entry in module.__dict__.get(JOURNAL, ()):
            found[id(entry.module)] = entry
    for path, module in swapped_modules(root):
        if id(module) not in found:
            cls = next(c for c in type(module).__mro__ if is_swapped(c))
            attributes = {k: v for k, v in module.__dict__.items() if k.startswith("_liger_") and k != JOURNAL}
            found[id(module)] = Entry(path, module, cls, attributes)
    return found.values()


def _conflicts(entry: Entry) -> Iterator[str]:
    module, path = entry.module, entry.path or "(model)"
    if _undone(entry):
        return
    if type(module) is not entry.installed:
        found = type(module)
        expected = f"{entry.installed.__module__}.{entry.installed.__qualname__} as patched"
        yield f"{path}: expected class {expected}, found {found.__module__}.{found.__qualname__}"
    held = module.__dict__.get("forward")
    if held is not None and not is_accelerate(module) and not _bound(held, entry) and not _prepared(entry):
        yield f"{path}: expected no forward on the instance, found one of {owner_of(held)}"
    old = module.__dict__.get("_old_forward")
    if old is not None and not _bound(old, entry):
        yield f"{path}: expected Liger's forward in _old_forward, found one of {owner_of(old)}"


def _restore(entry: Entry) -> None:
    module, original = entry.module, entry.installed.__liger_original__  # type: ignore[attr-defined]
    if _undone(entry):
        return
    module.__class__ = original
    for name in entry.attributes:
        module.__dict__.pop(name, None)
    for name in ("_old_forward", "_original_forward", "forward"):  # where accelerate keeps what it found
        if _bound(module.__dict__.get(name), entry):
            old = entry.old_forward if name == "_old_forward" else None
            module.__dict__[name] = types.MethodType(original.forward, module) if old is None else old
    if entry.forward is not None:
        module.__dict__.setdefault("forward", entry.forward)
    cell = tensor_parallel(module)
    if cell is not None and _bound(cell.cell_contents, entry):
        cell.cell_contents = types.MethodType(original.forward, module)


def _undone(entry: Entry) -> bool:
    """Whether someone has put the class back already, by undoing a part of the model."""
    return type(entry.module) is entry.installed.__liger_original__  # type: ignore[attr-defined]


def _bound(value: Any, entry: Entry) -> bool:
    """Whether ``value`` is the forward we installed, as a bound method, or that of the marked instance before it."""
    function = getattr(value, "__func__", None)
    return function is entry.installed.forward or owner_of(function).startswith("liger.construct.")  # type: ignore[attr-defined]


def _prepared(entry: Entry) -> bool:
    """Whether the forward on the instance is a wrapper around the module's own that may stay.

    It is accelerate's for mixed precision or that of transformers' tensor parallelism. Our function passes through to
    upstream's on a module that is no longer patched. Around that of a marked instance ``_original_forward`` has been
    upstream's since ``settle``.
    """
    if (inner := prepared_forward(entry.module)) is not None:
        return inner in (entry.installed.forward, entry.installed.__liger_original__.forward)  # type: ignore[attr-defined]
    cell = tensor_parallel(entry.module)
    return cell is not None and _bound(cell.cell_contents, entry)


def prepared_forward(module: Module) -> Any:
    """The function inside accelerate's mixed-precision wrapper on an instance, or None."""
    held = module.__dict__
    if "forward" not in held or not owner_of(held["forward"]).startswith("accelerate."):
        return None
    return getattr(held.get("_original_forward"), "__func__", None)


def has_own_forward(module: Module) -> bool:
    """Whether the forward on the instance is that of its class: what ``kernelize`` leaves where it has no kernel."""
    held = module.__dict__.get("forward")
    return getattr(held, "__self__", None) is module and held.__func__ is type(module).forward  # type: ignore[union-attr]


def is_accelerate(module: Module) -> bool:
    """Whether the forward on the instance is accelerate's hook wrapper."""
    return "_hf_hook" in module.__dict__ and "_old_forward" in module.__dict__


def tensor_parallel(module: Module) -> types.CellType | None:
    """Where a forward that a plan of transformers' has put on the instance holds the module's own."""
    held = module.__dict__.get("forward")
    if held is None or not owner_of(held).startswith(TENSOR_PARALLEL):
        return None
    cells = getattr(held, "__closure__", None) or ()
    return next((cell for cell in cells if getattr(cell.cell_contents, "__self__", None) is module), None)


def replace_attributes(holder: Any, values: Mapping[str, Any], where: str, what: str) -> Callable[[], None]:
    """Set attributes of a class or a module; returns what puts them back, all or none.

    Args:
        where, what: the holder, and what is put there, in the message of the UnpatchConflict that the returned function
            raises where an attribute holds something else by then.
    """
    before = {name: vars(holder).get(name, MISSING) for name in values}
    for name, value in values.items():
        setattr(holder, name, value)

    def undo() -> None:
        for name, value in values.items():
            if (found := vars(holder).get(name, MISSING)) is not value:
                raise UnpatchConflict(f"{where}.{name}: expected {what}, found {found!r}; nothing was undone")
        for name, original in before.items():
            if original is MISSING:
                delattr(holder, name)
            else:
                setattr(holder, name, original)

    return undo


def owner_of(function: Any) -> str:
    """The module a callable comes from, looking through partials and bound methods."""
    inner = getattr(function, "func", None) or getattr(function, "__func__", None) or function
    return f"{getattr(inner, '__module__', '?')}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"
