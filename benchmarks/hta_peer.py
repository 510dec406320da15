"""One run of HTA for benchmarks/commands.py, in its own environment: TASK PATH. Prints seconds, CPU time and memory."""

import json
import logging
import resource
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path

TASK, PATH = sys.argv[1], Path(sys.argv[2])


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    began = time.perf_counter()
    if TASK == "analyze":
        from hta.trace_analysis import TraceAnalysis

        with tempfile.TemporaryDirectory() as folder:  # HTA reads every file of a folder as a trace
            for path in PATH.glob("rank*"):
                shutil.copy(path, folder)
            analysis = TraceAnalysis(trace_dir=folder)
            analysis.get_temporal_breakdown(visualize=False)
            analysis.get_comm_comp_overlap(visualize=False)
    else:
        from hta.common.trace import parse_trace_file

        began = time.perf_counter()
        parse_trace_file(str(PATH))
    seconds = time.perf_counter() - began
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in used)
    print(json.dumps({"work": seconds, "cpu": cpu, "rss": used[0].ru_maxrss * 1024}))


if __name__ == "__main__":
    main()
