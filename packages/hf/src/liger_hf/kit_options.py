"""What the arguments of a kit mean. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from liger.registry import registry
from liger_hf.groups import ops_of


@dataclass(frozen=True, slots=True)
class Wanted:
    """Names that are asked for, switched off, and excluded; ``auto``: all others are wanted."""

    auto: bool
    asked: frozenset[str]
    off: frozenset[str]
    excluded: frozenset[str]

    @classmethod
    def of(cls, modules: Any, excluded: Iterable[str]) -> Wanted:
        """Read the argument ``modules``.

        Raises:
            TypeError: it is neither "auto", names, nor a mapping of names to bool.
            ValueError: an unknown name, one that is excluded, or one that is switched on and off.
        """
        if isinstance(modules, str) and modules == "auto":
            return cls(True, frozenset(), frozenset(), frozenset(excluded))
        if isinstance(modules, str) or not isinstance(modules, Iterable):
            hint = f"; write [{modules!r}]" if isinstance(modules, str) else ""
            raise TypeError(f"modules is {modules!r}, expected 'auto', a list of names or {{name: bool}}{hint}")
        auto = isinstance(modules, Mapping)
        flags = dict(modules) if isinstance(modules, Mapping) else dict.fromkeys(modules, True)
        ops_of(flags)
        wrong = {name: value for name, value in flags.items() if not isinstance(value, bool)}
        if wrong:
            raise TypeError(f"modules: {wrong} are no bools; write true or false without quotes")
        asked = frozenset(name for name, on in flags.items() if on)
        off = frozenset(flags) - asked
        if both := ops_of(asked) & ops_of(off):
            raise ValueError(f"modules switches {', '.join(sorted(both))} on and off: {flags}")
        for name in sorted(asked):
            if ops_of([name]) & ops_of(excluded):
                raise ValueError(
                    f"modules asks for {name}, which excluded_modules={sorted(excluded)} leaves out; make the kit with "
                    f"others: LigerKernelKit(excluded_modules=[])"
                )
        return cls(auto, asked, off, frozenset(excluded))

    def left_out(self, op: str) -> str | None:
        """Why an op is not patched, or None."""
        if op in ops_of(self.excluded):
            return "left out by excluded_modules="
        if op in ops_of(self.off) or not (self.auto or op in ops_of(self.asked)):
            return "left out by modules="
        return None

    def only(self) -> list[str]:
        """The installed ops that are patched."""
        return sorted(op for op in registry().ops if self.left_out(op) is None)


def plain(value: Any) -> Any:
    """The same with each mapping as a dict and each sequence but a string as a list, as OmegaConf's are neither."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [plain(inner) for inner in value]
    return value
