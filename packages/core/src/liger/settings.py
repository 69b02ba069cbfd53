"""Launch settings: a rule for every shape, and before it tables of what was measured.

A function that decides constants of a launch is the rule, with its reasons; its last parameter is the GPU::

    @settings(num_warps=(4, 8, 16), STAGES=(1, 2, 3))
    def _backward_settings(H: int, itemsize: int, device: GPU) -> dict[str, int]: ...

A call looks its arguments up in the user's table, then in the one that the function's package ships for the
architecture, ``launches/<architecture>.json``. An entry replaces constants of the rule: none but those named tunable,
by none but the values listed, all of which give right results. The answer is kept: the next call costs as much as
``functools.cache``. Nothing is timed here; `liger.tune` does that when asked. Imports neither torch nor triton.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from liger.declare import load

FORMAT = 1
FIELDS = {"function": str, "architecture": str, "arguments": dict, "constants": dict, "reason": str}
VARIABLE = "LIGER_LAUNCH_TABLE"

P = ParamSpec("P")
T = TypeVar("T")


class Request(NamedTuple):
    """What a rule was asked: ``"module:function"``, ``"sm90"``, and its arguments without the device."""

    function: str
    architecture: str
    arguments: tuple[Any, ...]

    @property
    def named(self) -> dict[str, Any]:
        """The arguments by name."""
        return dict(zip(RULES[self.function].parameters, self.arguments, strict=True))


@dataclass(frozen=True, slots=True)
class Rule:
    """A function that decides settings, with the values that each tunable constant may have, smallest first."""

    name: str
    decide: Callable[..., dict[str, int]]
    parameters: tuple[str, ...]
    tunable: Mapping[str, tuple[int, ...]]

    @property
    def package(self) -> str:
        """The package that ships its tables."""
        return self.name.partition(":")[0].partition(".")[0]


class Table(NamedTuple):
    """Usable entries of a file, and a line for each that is not; the lines name file and entry."""

    entries: dict[Request, dict[str, Any]]
    problems: tuple[str, ...]


class Trial(NamedTuple):
    """Constants under trial by request, and what was asked so far with the answers."""

    changes: Mapping[Request, Mapping[str, int]]
    asked: dict[Request, dict[str, int]]


RULES: dict[str, Rule] = {}
_trial: Trial | None = None
_forget: list[Callable[[], None]] = []


# -- For kernels -------------------------------------------------------------------------------------------------------
def settings(**tunable: Sequence[int]) -> Callable[[Callable[P, dict[str, int]]], Callable[P, dict[str, Any]]]:
    """Decorate a rule; it is called with positional arguments, which are numbers or words, and the GPU last.

    All callers share the answer: ``copy()`` it before changing it, as for a number that is not for the launch.

    Args:
        tunable: for each constant that `liger tune` may change, the values it may have.
    """

    def decorate(rule: Callable[P, dict[str, int]]) -> Callable[P, dict[str, Any]]:
        name = f"{rule.__module__}:{rule.__qualname__}"
        parameters = tuple(inspect.signature(rule).parameters)[:-1]
        values = {constant: tuple(sorted(several)) for constant, several in tunable.items()}
        RULES[name] = known = Rule(name, rule, parameters, values)
        return cached(cast(Callable[P, dict[str, Any]], functools.wraps(rule)(functools.partial(_choose, known))))

    return decorate


def cached(fn: Callable[P, T]) -> Callable[P, T]:
    """``functools.cache`` for what is made of settings: it forgets when they change, and does not grow with lengths."""
    kept = functools.lru_cache(maxsize=4096)(fn)
    _forget.append(kept.cache_clear)
    return cast(Callable[P, T], kept)


def _choose(rule: Rule, *args: Any) -> dict[str, int]:
    request = Request(rule.name, args[-1].name, args[:-1])
    chosen = {**rule.decide(*args)}
    chosen |= measured(request, chosen)
    if _trial is not None:
        chosen |= _trial.changes.get(request, {})
        _trial.asked[request] = chosen
    return chosen


# -- Tables ------------------------------------------------------------------------------------------------------------
def user_table() -> Path | None:
    """The user's table, there or not: ``LIGER_LAUNCH_TABLE``, else ``liger/launches.json`` in the config folder.

    None if the variable is empty, which is how tests and the compile gate see nobody's table.
    """
    if (named := os.environ.get(VARIABLE)) is not None:
        return Path(named) if named else None
    return Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "liger", "launches.json")


def shipped_table(package: str, architecture: str) -> Path | None:
    """The table of an architecture in an imported package, there or not; None for a module without a file."""
    file = getattr(sys.modules.get(package), "__file__", None)
    return Path(file).parent / "launches" / f"{architecture}.json" if file else None


def measured(request: Request, chosen: Mapping[str, int]) -> dict[str, int]:
    """What the first table with an entry for the request puts in place of constants ``chosen`` by the rule."""
    for file in (user_table(), shipped_table(RULES[request.function].package, request.architecture)):
        entry = _warned(file).entries.get(request) if file else None
        if entry is None:
            continue
        if unknown := entry["constants"].keys() - chosen.keys():
            _warn(f"{file}: {_where(entry)}: {', '.join(sorted(unknown))} is no constant there; the entry is not used")
            continue
        return dict(entry["constants"])
    return {}


@functools.cache
def _warned(file: Path) -> Table:
    """``read``, with a warning for each problem."""
    table = read(file)
    for problem in table.problems:
        _warn(f"{problem}; it is not used")
    return table


def _warn(message: str) -> None:
    warnings.warn(f"launch settings: {message}", stacklevel=2)


def read(file: Path) -> Table:
    """A table, with the modules it names imported; one that is not there is empty, unless it was asked for by name."""
    try:
        entries = load_entries(file)
    except (ValueError, OSError) as error:
        return Table({}, (str(error),))
    found: dict[Request, dict[str, Any]] = {}
    problems = []
    for number, entry in enumerate(entries, 1):
        if wrong := _wrong(entry) or ("there is one before it" if _request(entry) in found else ""):
            problems.append(f"{file}, entry {number}: {wrong}")
        else:
            found[_request(entry)] = entry
    return Table(found, tuple(problems))


def load_entries(file: Path) -> list[Any]:
    """The entries of a file, unchecked.

    Raises:
        ValueError: it is no table, or it is not there although the environment names it.
    """
    if not file.is_file():
        if str(file) == os.environ.get(VARIABLE):
            raise ValueError(f"{VARIABLE} names {file}, which does not exist: unset it, or write it with `liger tune`")
        return []
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is no JSON: {error}") from None
    entries = data.get("entries") if isinstance(data, dict) and data.get("format") == FORMAT else None
    if not isinstance(entries, list):
        raise ValueError(f'{file} is no table of launch settings: expected {{"format": {FORMAT}, "entries": [...]}}')
    return entries


def _request(entry: Mapping[str, Any]) -> Request:
    named = entry["arguments"]
    arguments = tuple(named[name] for name in RULES[entry["function"]].parameters)
    return Request(entry["function"], entry["architecture"], arguments)


def _wrong(entry: Any) -> str:
    """What is wrong with an entry, or ""."""
    if not isinstance(entry, dict):
        return f"it is {entry!r}, expected an object"
    for field, kind in FIELDS.items():
        if not isinstance(entry.get(field), kind):
            return f"{field} is {entry.get(field)!r}, expected {'an object' if kind is dict else 'words'}"
    rule, why = _rule(entry["function"])
    if rule is None:
        return why
    if entry["arguments"].keys() != set(rule.parameters):
        return f"arguments are {', '.join(entry['arguments'])}, {rule.name} has {', '.join(rule.parameters)}"
    if wrong := [f"{n}={v!r}" for n, v in entry["arguments"].items() if not isinstance(v, int | str)]:
        return f"argument {', '.join(wrong)}: expected a whole number or a word"
    return _wrong_constants(rule, entry["constants"])


def _rule(name: str) -> tuple[Rule | None, str]:
    """The rule of that name, its module imported, or why there is none."""
    try:
        load(name)
    except Exception as error:  # any text may stand in a file
        return None, f"function {name!r} is not there: {error}"
    return RULES.get(name), f"{name} decides no launch settings"


def _wrong_constants(rule: Rule, constants: Mapping[str, Any]) -> str:
    for name, value in constants.items():
        if name not in rule.tunable:
            return f"{name!r} is no tunable constant of {rule.name}; it has {', '.join(rule.tunable)}"
        if type(value) is not int or value not in rule.tunable[name]:
            return f"{name} is {value!r}, expected one of {', '.join(map(str, rule.tunable[name]))}"
    return "" if constants else "it has no constants"


def _where(entry: Mapping[str, Any]) -> str:
    return f"{entry['function']} {', '.join(f'{k}={v}' for k, v in entry['arguments'].items())}"


def write(file: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """Merge entries into a table: one for the same request is replaced, all others stay; nothing is half written.

    Raises:
        ValueError: the file is there and is no table.
    """
    same = {_identity(e) for e in entries}
    kept = [e for e in (load_entries(file) if file.is_file() else []) if _identity(e) not in same]
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.write_text(json.dumps({"format": FORMAT, "entries": [*kept, *entries]}, indent=1) + "\n", encoding="utf-8")
    draft.replace(file)
    reset()


def _identity(entry: Any) -> str:
    known = entry if isinstance(entry, dict) else {}
    return json.dumps([known.get(name) for name in ("function", "architecture", "arguments")], sort_keys=True)


# -- For the tuner and tests -------------------------------------------------------------------------------------------
def reset() -> None:
    """Forget what was chosen and what tables said."""
    _warned.cache_clear()
    _again()


def _again() -> None:
    for forget in _forget:
        forget()


@contextlib.contextmanager
def trying(changes: Mapping[Request, Mapping[str, int]]) -> Iterator[dict[Request, dict[str, int]]]:
    """Inside the block these constants replace what is chosen; yields what is asked, with the answers, as it comes.

    For one thread at a time; it counts for launches from all threads, since backwards run in autograd's.
    """
    global _trial
    before, _trial = _trial, Trial(changes, {})
    _again()
    try:
        yield _trial.asked
    finally:
        _trial = before
        _again()
