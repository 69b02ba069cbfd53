"""Importing costs nothing, in fresh processes."""

import subprocess
import sys

import pytest

HEAVY = "[m for m in ('torch', 'triton', 'transformers', 'numpy', 'rich', 'typer') if m in sys.modules]"


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    "code",
    [
        "import liger",
        "import liger; liger.hookimpl; liger.Op; liger.Report",
        "from liger.registry import registry; registry().ops",
        "import liger.testing, liger.testing.pytest_plugin",
    ],
)
def test_nothing_heavy_is_imported(code):
    assert run(f"import sys\n{code}\nprint({HEAVY})") == "[]"


def test_import_takes_less_than_200_ms():
    """Of processor time: how busy the machine is does not count."""
    times = [float(run("import time\nimport liger\nprint(time.process_time())")) for _ in range(5)]
    bare = [float(run("import time\nprint(time.process_time())")) for _ in range(5)]
    assert min(times) - min(bare) < 0.2


def test_unknown_attribute_names_itself():
    import liger

    with pytest.raises(AttributeError, match="'autopach'"):
        liger.autopach  # noqa: B018
    assert set(liger.__all__) <= set(dir(liger))
    for name in liger.__all__:
        getattr(liger, name)
    assert callable(liger.plan) and callable(liger.explain)  # not shadowed by a module of the same name


def test_functions_are_not_shadowed_by_modules_once_these_are_loaded():
    import liger.explanation
    import liger.planner

    assert callable(liger.plan) and callable(liger.explain)
