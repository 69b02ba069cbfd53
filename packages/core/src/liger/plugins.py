"""Finds and loads plugins. A broken one becomes a row that names it; it never takes the others down."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import pluggy

from liger import hookspecs

GROUP = "liger"
PLUGIN_API = 1
"""Version of the plugin interface. A plugin states the one it was written for as ``LIGER_PLUGIN_API`` in its
``plugin.py``; without a statement it is taken to be current."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """One entry point: where it comes from, and either what it implements or why it is not loaded."""

    name: str
    dist: str
    version: str
    entry_point: str
    hooks: tuple[str, ...] = ()
    error: str | None = None
    disabled: bool = False

    @property
    def owner(self) -> str:
        """``dist version``, as messages name it."""
        return f"{self.dist} {self.version}"

    def __str__(self) -> str:
        if self.disabled:
            return f"liger plugin {self.name!r} from {self.owner} is disabled by LIGER_DISABLE_PLUGINS"
        if self.error:
            return (
                f"liger plugin {self.name!r} from {self.owner} ({self.entry_point}) was not loaded: {self.error}. "
                f"Reinstall or remove {self.dist}, or set LIGER_DISABLE_PLUGINS={self.name}"
            )
        return f"liger plugin {self.name!r} from {self.owner}: {', '.join(self.hooks) or 'no hooks'}"


class Plugins:
    """The loaded plugins of this process."""

    def __init__(self, entry_points: list[metadata.EntryPoint] | None = None) -> None:
        self.manager = pluggy.PluginManager("liger")
        self.manager.add_hookspecs(hookspecs)
        self.infos: list[PluginInfo] = []
        found = list(metadata.entry_points(group=GROUP)) if entry_points is None else entry_points
        disabled = {n.strip() for n in os.environ.get("LIGER_DISABLE_PLUGINS", "").split(",") if n.strip()}
        by_name: dict[str, list[metadata.EntryPoint]] = defaultdict(list)
        for ep in found:
            # an editable install and a wheel of one distribution both list it: same value, same owner
            if all((ep.value, _dist(ep)) != (other.value, _dist(other)) for other in by_name[ep.name]):
                by_name[ep.name].append(ep)
        for name in sorted(by_name):
            self._load(name, by_name[name], name in disabled)
        self.unknown_disabled = sorted(disabled - set(by_name))

    @property
    def failed(self) -> list[PluginInfo]:
        """Plugins that were found and could not be used."""
        return [i for i in self.infos if i.error]

    def call(self, hook: str, **kwargs: Any) -> list[tuple[PluginInfo, Any]]:
        """Call ``hook`` on each plugin by itself; one that raises becomes a failed row and the others go on."""
        results = []
        for index, info in enumerate(self.infos):
            plugin = None if info.error or info.disabled else self.manager.get_plugin(info.name)
            if plugin is None or hook not in info.hooks:
                continue
            caller = self.manager.subset_hook_caller(hook, [p for p in self.manager.get_plugins() if p is not plugin])
            try:
                results += [(info, r) for r in caller(**kwargs)]
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # sys.exit() in a hook is that plugin's row as well
                self.infos[index] = _failed(info, f"{hook} raised {describe(error)}")
        return results

    def fail(self, info: PluginInfo, error: str) -> None:
        """Turn a loaded plugin into a failed row; nothing of it is called any more."""
        self.infos = [_failed(i, error) if i.name == info.name and not i.error else i for i in self.infos]

    def _load(self, name: str, eps: list[metadata.EntryPoint], disabled: bool) -> None:
        infos = [PluginInfo(name=name, dist=_dist(e)[0], version=_dist(e)[1], entry_point=e.value) for e in eps]
        if len(eps) > 1:
            owners = " and ".join(i.owner for i in infos)
            self.infos += [_failed(i, f"the name {name!r} is claimed by {owners}; neither is loaded") for i in infos]
            return
        info = infos[0]
        if disabled:
            self.infos.append(_replace(info, disabled=True))
            return
        self.infos.append(self._register(info, eps[0]))

    def _register(self, info: PluginInfo, ep: metadata.EntryPoint) -> PluginInfo:
        try:
            plugin = ep.load()
            api = getattr(plugin, "LIGER_PLUGIN_API", PLUGIN_API)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a third party's import raises, sys.exit() too, is that plugin's row
            return _failed(info, f"importing it raised {describe(error)}")
        if type(api) is not int:
            return _failed(info, f"its LIGER_PLUGIN_API is {shown(api)}, expected a whole number such as {PLUGIN_API}")
        if api != PLUGIN_API:
            fix = "a newer version of the plugin" if api < PLUGIN_API else "a newer liger-core"
            return _failed(info, f"it was written for plugin API {api}, this liger has {PLUGIN_API}; install {fix}")
        try:
            self.manager.register(plugin, name=info.name)
            self.manager.check_pending()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if self.manager.get_plugin(info.name) is not None:
                self.manager.unregister(name=info.name)
            wrong_hook = isinstance(error, pluggy.PluginValidationError)
            return _failed(
                info, _hook_error(plugin, error) if wrong_hook else f"registering it raised {describe(error)}"
            )
        hooks = tuple(sorted(h.name for h in self.manager.get_hookcallers(plugin) or ()))
        return _replace(info, hooks=hooks)


def _dist(ep: metadata.EntryPoint) -> tuple[str, str]:
    # metadata without a name or version, as a half-removed distribution leaves it, gives None
    return (
        (ep.dist.name or "unknown distribution", ep.dist.version or "?") if ep.dist else ("unknown distribution", "?")
    )


def describe(error: BaseException) -> str:
    """``ValueError: what it says``, also of an error that cannot be printed."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def shown(value: object) -> str:
    """``repr`` in at most 200 characters, also of an object that has none."""
    try:
        text = repr(value)
    except Exception:
        text = f"an object of type {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


def _hook_error(plugin: object, error: BaseException) -> str:
    known = sorted(n for n in vars(hookspecs) if n.startswith("liger_"))
    for name in dir(plugin):
        if hasattr(getattr(plugin, name, None), "liger_impl") and name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known hooks: {', '.join(known)}"
            return f"unknown hook {name!r}{hint}"
    return str(error).replace("\n", " ")


def _replace(info: PluginInfo, **changes: Any) -> PluginInfo:
    import dataclasses

    return dataclasses.replace(info, **changes)


def _failed(info: PluginInfo, error: str) -> PluginInfo:
    return _replace(info, error=error)
