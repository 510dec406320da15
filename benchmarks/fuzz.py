"""Coverage-guided fuzzing of the readers by atheris (pip install atheris). Finds crashes, hangs and memory leaks.

    python benchmarks/fuzz.py trace CORPUS -max_total_time=3600 -timeout=20 -rss_limit_mb=3000
    python benchmarks/fuzz.py export CORPUS -max_total_time=3600 -timeout=20 -rss_limit_mb=3000

CORPUS is a folder. The script first fills it with pieces of the recordings in tests/data, and then it grows. Any result
other than numbers or an `AnalysisError` is a finding; libFuzzer writes its input to `crash-...` in the working folder.
"""

import gzip
import json
import random
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["rankscope.analysis"]):
    from rankscope.analysis import AnalysisError, load, summarise
    from rankscope.analysis.options import Options

ROOT = Path(__file__).parents[1]
KINDS = {"trace": "rank0.json", "export": "rank0.sqlite"}


def seeds(kind: str, corpus: Path) -> None:
    """Write pieces of real recordings into the corpus."""
    corpus.mkdir(parents=True, exist_ok=True)
    data = ROOT / "tests" / "data"
    if kind == "export":
        for number, path in enumerate(sorted(data.rglob("*.sqlite"))):
            (corpus / f"seed{number}").write_bytes(path.read_bytes())
        return
    rng = random.Random(0)
    for number, path in enumerate(sorted([*data.rglob("rank0.json"), *data.rglob("*.json.gz")])):
        try:
            trace = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
            found = trace["traceEvents"]
        except (ValueError, KeyError, TypeError, OSError, EOFError):
            continue
        steps = [event for event in found if "ProfilerStep" in str(event.get("name"))]
        trace["traceEvents"] = steps[:2] + rng.sample(found, min(20, len(found)))
        (corpus / f"seed{number}").write_text(json.dumps(trace))


def main() -> None:
    kind, corpus = sys.argv[1], Path(sys.argv[2])
    seeds(kind, corpus)
    target = Path(tempfile.mkdtemp()) / KINDS[kind]

    def one(data: bytes) -> None:
        target.write_bytes(data)
        try:
            json.dumps(summarise(load(target, options=Options(cache=False, fast=False))), allow_nan=False)
        except AnalysisError as error:
            assert "\n" not in str(error)

    atheris.Setup([sys.argv[0], *sys.argv[3:], str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
