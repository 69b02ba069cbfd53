"""The documentation agrees with the code: messages that it quotes, a plugin that it shows, no place of our own."""

import ast
import functools
import re
from pathlib import Path

import pytest

from liger import errors

ROOT = Path(__file__).resolve().parent.parent
TROUBLE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "mkdocs.yml", *sorted((ROOT / "docs").rglob("*.md"))]


def quoted():
    """Messages in the first column of the tables, in the order of the page."""
    rows = [row.split(" | ")[0] for row in TROUBLE.splitlines() if row.startswith("| `")]
    return [message for row in rows for message in re.findall(r"`(.+?)`(?:, |$)", row.removeprefix("| "))]


@functools.cache
def messages():
    """Every text in the packages' sources, with `…` for what is filled in and one blank for white space."""
    found = []
    for file in (ROOT / "packages").rglob("src/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            words = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts]
            if any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in parts):
                found.append(" ".join("".join(words).split()))
    return found


@pytest.mark.parametrize("message", quoted())
def test_a_quoted_message_is_one_of_ours(message):
    pattern = ".*".join(map(re.escape, message.strip("… ").split("…")))
    assert re.search(r"\w{4}", message)
    assert any(re.search(pattern, text) for text in messages()), pattern


def test_a_message_that_is_none_of_ours_is_found_out():
    assert not any("patch before fully sharded" in text for text in messages())
    assert len(quoted()) > 40 and len(set(quoted())) == len(quoted())


def test_every_error_has_its_section():
    names = {name for name, value in vars(errors).items() if isinstance(value, type)} - {"LigerError"}
    assert names <= set(re.findall(r"(?m)^## (\w+)", TROUBLE))


def test_the_device_that_is_shown_is_the_one_that_is_tested():
    text = (ROOT / "docs" / "add-a-device.md").read_text(encoding="utf-8")
    home = ROOT / "tests" / "downstream" / "acme-kernels"
    for file in ("src/acme_kernels/plugin.py", "src/acme_kernels/kernels.py"):
        assert f"```python\n{(home / file).read_text(encoding='utf-8')}```" in text
    shown = re.search(r"```toml\n([\s\S]*?)```", text)
    assert shown and shown[1] in (home / "pyproject.toml").read_text(encoding="utf-8")


def test_no_result_names_a_folder_of_one_machine():
    for file in (ROOT / "benchmarks").rglob("*.json"):
        assert not re.search(r"/(?:home|root|opt|work|tmp|Users)/|site-packages", file.read_text(encoding="utf-8")), (
            file
        )


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_no_page_names_a_host_of_packages_or_a_folder_of_one_machine(file):
    found = re.findall(r"https?://\S+|/(?:home|root|opt|work|tmp|Users)/\S*", file.read_text(encoding="utf-8"))
    assert not found
