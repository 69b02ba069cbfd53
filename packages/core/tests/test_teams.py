"""Teams of programs: when they may wait for each other. The ops that use them test what they compute."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from liger._teams_triton import HEAR, TELL, TOGETHER, phases  # noqa: E402
from liger.launch import ASSUMED, assume  # noqa: E402


def test_a_team_that_may_not_run_at_a_time_is_launched_twice() -> None:
    with assume(ASSUMED._replace(processors=20)):
        assert phases(20, torch.device("meta")) == (TOGETHER.value,)
        assert phases(21, torch.device("meta")) == (TELL.value, HEAR.value)
        assert phases(2, torch.device("cpu")) == (TELL.value, HEAR.value)
    with assume(ASSUMED._replace(name="gfx942")):
        assert phases(2, torch.device("meta")) == (TELL.value, HEAR.value)
