"""`rankscope ncu`: the command it prints, the job behind it, and the CSV it reads; ncu itself needs a GPU."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rankscope.analysis.commands.analyze import main as analyze
from rankscope.conf import RunDir, load_config
from rankscope.launch.ncu.command import main
from rankscope.launch.ncu.output import base_name, kernel_of, lines_of, metrics_here, read_csv

RUN = Path(__file__).parents[2] / "data" / "runs" / "resnet_w2"
CSV = """==PROF== Connected to process 42
"ID","Process ID","Kernel Name","gpu__time_duration.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed"
"","","","usecond","%"
"0","42","vectorized_elementwise_kernel","1,234.5","81.25"
"1","42","nvjet_tst_128x256","2.5",""
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shutil.copytree(RUN, tmp_path / "run")
    assert analyze([str(tmp_path / "run"), "--quiet"]) == 0
    return tmp_path / "run"


def test_the_command_runs_one_share_of_the_job(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([str(run), "--top", "2"]) == 0
    command = shlex.split(capfd.readouterr().out)
    assert "--csv" in command and command[-2:] == [str(run / "ncu"), "nsys"]
    heaviest = pq.read_table(run / "analysis" / "tables" / "kernels_by_name.parquet").to_pylist()
    own = [row for row in heaviest if row["rank"] == 0 and row["class"] not in ("communication", "copy")]
    pattern = command[command.index("--kernel-name") + 1]
    assert base_name(own[0]["name"]) in pattern
    alone, whole = load_config(RunDir(run).ncu / "config.yaml"), load_config(run / "config.yaml")
    assert (alone.world_size, alone.ddp.enabled) == (1, False)
    assert alone.model == whole.model and alone.rank_batch_size == whole.rank_batch_size


def test_its_csv_becomes_a_table(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out.csv").write_text(CSV)
    assert main([str(run), "--csv", str(tmp_path / "out.csv")]) == 0
    assert "2 more launches are of kernels" in capfd.readouterr().out
    rows = pq.read_table(run / "analysis" / "tables" / "ncu.parquet").to_pylist()
    assert [(row["duration_ns"], row["memory_percent"]) for row in rows] == [(1_234_500.0, 81.25), (2_500.0, None)]
    assert read_csv("==ERROR== ERR_NVGPUCTRPERM") == []


@pytest.mark.parametrize(
    ("kernel", "base"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::F<float>>(int)",
            "vectorized_elementwise_kernel",
        ),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN", "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm>(cutlass::Params)", "Kernel2"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>(float*)", "cunn_SoftMaxForward"),
    ],
)
def test_base_names(kernel: str, base: str) -> None:
    assert base_name(kernel) == base


def test_a_kernel_is_known_by_its_words() -> None:
    """Names as CUPTI wrote them, and as ncu 2025.3 did, of the same job on an H200."""
    copy = (
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::"
        "{lambda()#3}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul>, 4, "
        "TrivialOffsetCalculator<1, unsigned int> >(int, std::array<char*, 2ul>)"
    )
    fill = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
        "(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
    )
    add = fill.replace("FillFunctor", "CUDAFunctor_add")
    of_ncu = "void vectorized_elementwise_kernel<4, FillFunctor<float>, array<char *, 1>>(int, T2, T3)"
    assert kernel_of(of_ncu, [copy, add, fill]) == fill
    assert kernel_of(of_ncu, [copy, add]) is None


def test_what_ncu_measured_is_joined_to_the_kernels_of_the_trace() -> None:
    """Both recorded of one job on an H200; ncu with its clock at base: a softmax is bound by memory."""
    data = Path(__file__).parents[2] / "data" / "ncu"
    kernels = json.loads((data / "gpt_small_h200.json").read_text())
    rows = read_csv((data / "gpt_small_h200.csv").read_text())
    names = [kernel["name"] for kernel in kernels]
    for row in rows:
        row["kernel"] = kernel_of(row["name"], names)
    assert {row["kernel"] for row in rows} == {*names, None}
    (softmax,) = [row for row in rows if "cunn_SoftMaxBackward" in row["name"]]
    (traced,) = [kernel["mean_ns"] for kernel in kernels if "cunn_SoftMaxBackward" in kernel["name"]]
    assert softmax["duration_ns"] == pytest.approx(traced, rel=0.02)
    title, first, *_, last, _ = lines_of(rows, names)
    assert "issue %" in title and "tensor %" not in title, "what was not asked for is not shown"
    assert first.endswith("direct_copy_kernel_cuda") and last.startswith("10 more launches")
    assert all(len(line) <= 80 for line in lines_of(rows, names))


def test_metrics_that_only_some_gpus_have_are_asked_for_where_they_are_listed() -> None:
    busy = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
    assert busy not in metrics_here(None) and busy not in metrics_here("sm__throughput  %")
    assert busy in metrics_here("sm__pipe_tensor_cycles_active  cycle  # of cycles where the tensor pipe was active")


def test_what_cannot_be_is_one_line(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert main([str(run), "--rank", "7"]) == 2
    assert main([str(run), "--csv", str(tmp_path / "none.csv")]) == 2
    assert main([str(run), "--top", "many"]) == 2
    if shutil.which("ncu") is None:
        assert main([str(run), "--go"]) == 2
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe")
    assert main([str(run), "--csv", str(tmp_path / "x.csv")]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert "x.csv: holds no kernel" in lines.pop()
    assert "no kernels of rank 7" in lines[1] and "none.csv: No such file" in lines[2] and "--top" in lines[3]
    assert len(lines) == 4 or "ncu is not on PATH" in lines[4]
    assert all(line.startswith("rankscope ncu: ") for line in lines)


def test_the_job_runs_without_torchrun(run: Path) -> None:
    """On this machine without ncu, and on the CPU: that its configuration is whole."""
    assert main([str(run)]) == 0
    text = (run / "ncu" / "config.yaml").read_text()
    (run / "ncu" / "config.yaml").write_text(text.replace("device: auto", "device: cpu").replace("cuda", "cpu"))
    command = [sys.executable, "-m", "rankscope.harness", str(run / "ncu"), "nsys"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
