"""Peak memory above a level, by the best means the platform has."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Peak(ABC):
    """Context manager: `.bytes` is the highest use inside the block minus the use at its start."""

    how = "not measured: install psutil"
    bytes: int | None = None

    def __enter__(self) -> Self:
        gc.collect()
        _give_back()
        self.level = self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        highest = self.stop()
        self.bytes = None if highest is None or self.level is None else max(0, highest - self.level)

    @abstractmethod
    def start(self) -> int | None:
        """Begin anew and return what is in use now."""

    @abstractmethod
    def stop(self) -> int | None:
        """Return the highest use since `start`."""


class CudaPeak(Peak):
    """Memory that torch's allocator handed out on the current device."""

    how = "torch.cuda.max_memory_allocated"

    def start(self) -> int:
        """Forget the peak so far."""
        import torch

        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def stop(self) -> int:
        """Peak of the allocator."""
        import torch

        return torch.cuda.max_memory_allocated()


class LinuxPeak(Peak):
    """Resident memory as the kernel counts it: exact, and reset by writing 5 to clear_refs."""

    how = "resident memory, VmHWM"

    def start(self) -> int:
        """Forget the peak so far."""
        CLEAR.write_text("5")
        return _status("VmRSS")

    def stop(self) -> int:
        """The kernel's high-water mark."""
        return _status("VmHWM")


class SampledPeak(Peak):
    """Resident memory, looked at every few milliseconds by a thread."""

    how = "resident memory, sampled"

    def start(self) -> int:
        """Begin to look."""
        self._highest = level = _resident()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return level

    def stop(self) -> int:
        """Stop looking."""
        self._end.set()
        self._thread.join()
        return self._highest

    def _watch(self) -> None:
        while not self._end.wait(0.002):
            self._highest = max(self._highest, _resident())


class NoPeak(Peak):
    """For a platform without /proc and without psutil."""

    def start(self) -> None:
        """Nothing to begin."""

    def stop(self) -> None:
        """Nothing was seen."""


def peak(device: str) -> Peak:
    """The meter for this device and platform."""
    if device.startswith("cuda"):
        return CudaPeak()
    try:
        CLEAR.write_text("5")
        return LinuxPeak()
    except OSError:  # not Linux, or a container that forbids it
        pass
    try:
        _resident()
        return SampledPeak()
    except ImportError:
        return NoPeak()


def _status(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def _resident() -> int:
    if STATUS.exists():
        return _status("VmRSS")
    import psutil

    return int(psutil.Process().memory_info().rss)


def _give_back() -> None:
    """Return freed memory to the system, so that a later step cannot use it unseen."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl does not
        if trim is not None:
            trim(0)
