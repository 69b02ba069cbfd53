"""The committed table of trainings, and how it is made."""

import sys
from pathlib import Path

import pytest
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import convergence_table as table

RUN = """<testsuites><testsuite time="90" tests="5"><testcase name="test_training[xlm-roberta-fp32-fused-loss]"/>
<testcase name="test_training[llama-bf16-with-logits]"><failure message="losses is off by&#10;1e-3 | more"/></testcase>
<testcase name="test_training[llama-fp32-fused-loss]"><skipped message="drift: llama"/></testcase>
<testcase name="test_training_with_interpreted_kernels"/></testsuite></testsuites>"""

MORE = """<testsuites><testsuite time="90" tests="1"><testcase name="test_training[llama-fp32-with-logits]"/>
</testsuite></testsuites>"""


def test_rows_and_counts(tmp_path):
    (tmp_path / "run.xml").write_text(RUN)
    (tmp_path / "more.xml").write_text(MORE)
    text = table.page([tmp_path / "run.xml", tmp_path / "more.xml"])
    assert "2 trainings\npassed, 1 failed, 1 skipped, in 3 minutes" in text
    assert "| type | fp32 fused-loss | fp32 with-logits | bf16 fused-loss | bf16 with-logits |" in text
    assert "| llama | skipped: drift: llama | passed | not run | failed: losses is off by 1e-3 / more |" in text
    assert text.splitlines()[-1] == "| xlm-roberta | passed | not run | not run | not run |"


def test_the_committed_table_has_no_failure():
    (page,) = table.DOCS.glob("convergence-*.md")
    text = page.read_text(encoding="utf-8")
    assert "failed:" not in text and "not run" not in text and text.count("| passed |") > 100


def test_where_it_is_written(tmp_path, monkeypatch, capsys):
    run, docs, elsewhere = tmp_path / "run.xml", tmp_path / "docs", tmp_path / "table.md"
    run.write_text(RUN)
    docs.mkdir()
    (docs / "convergence-1.0.0.md").write_text("of another version")
    monkeypatch.setattr(table, "DOCS", docs)
    monkeypatch.setattr(sys, "argv", ["convergence_table.py", str(run), "--out", str(elsewhere)])
    table.main()
    assert elsewhere.read_text() == table.page([run]) and [f.name for f in docs.iterdir()] == ["convergence-1.0.0.md"]
    monkeypatch.setattr(sys, "argv", ["convergence_table.py", str(run)])
    table.main()
    (written,) = docs.iterdir()
    assert written.name == f"convergence-{transformers.__version__}.md" and written.read_text() == elsewhere.read_text()
    monkeypatch.setattr(sys, "argv", ["convergence_table.py", "--out", str(elsewhere)])
    with pytest.raises(SystemExit):
        table.main()
    assert "RUN.xml" in capsys.readouterr().err
