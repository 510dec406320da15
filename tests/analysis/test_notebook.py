"""The notebook of the documentation runs from beginning to end on the committed data."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


def test_notebook_runs(tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="nbclient is not installed: pip install nbclient ipykernel")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install ipykernel")
    output = tmp_path / "executed.ipynb"
    own = dict.fromkeys(("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"), str(tmp_path))
    command = [sys.executable, "-c", "from nbclient.cli import main; main()", str(NOTEBOOK), f"--output={output}"]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    cells = [cell for cell in json.loads(output.read_text())["cells"] if cell["cell_type"] == "code"]
    assert "'rank': 3" in "".join(cells[0]["outputs"][-1]["data"]["text/plain"])
    assert "image/png" in cells[-1]["outputs"][-1]["data"]
