"""The analysis beyond one machine: a Dask cluster with a worker that dies, servers of objects, parts of a job array."""

import gzip
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest

from rankscope.analysis import Options, load, summarise
from rankscope.analysis.commands.analyze import main as analyze
from rankscope.analysis.commands.ingest import main as ingest

TRACES = Path(__file__).parents[2] / "data" / "traces"
RUN = Path(__file__).parents[2] / "data" / "runs" / "resnet_w2"
STRAGGLER = next(TRACES.glob("*straggler*"))


def numbers(summary: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in summary.items() if key != "versions"}


def summary_of(*arguments: str, folder: Path) -> dict[str, Any]:
    out = folder / "summary.json"
    assert analyze([*arguments, "--json", str(out), "--quiet"]) in (0, 3)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


# --- parts of a job array ------------------------------------------------------------------------------------


def test_parts_are_joined_and_may_run_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "kept"
    for part in ("0/3", "1/3", "2/3", "1/3"):
        assert ingest([str(STRAGGLER), "--out", str(kept), "--part", part]) == 0
    said = capsys.readouterr().out
    entries = sorted((kept / "ranks").iterdir())
    assert len([entry for entry in entries if not entry.suffix]) == len(list(STRAGGLER.glob("*.json.gz")))
    assert "nothing to do" in said and "read and kept" in said
    before = {entry: entry.stat().st_mtime_ns for entry in entries}
    joined = summary_of(str(STRAGGLER), "--cache", str(kept), folder=tmp_path)
    assert {entry: entry.stat().st_mtime_ns for entry in entries} == before
    assert numbers(joined) == numbers(summary_of(str(STRAGGLER), "--no-cache", folder=tmp_path))


@pytest.mark.parametrize("part", ["3/3", "x", "1"])
def test_a_part_that_is_none(part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ingest([str(STRAGGLER), "--out", str(tmp_path), "--part", part]) == 2
    assert "write K/N" in capsys.readouterr().err


# --- Dask ----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # of the cluster's own threads and sockets as it ends
def test_a_cluster_whose_worker_dies_gives_the_same(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="dask is not installed: pip install distributed")
    source = min(TRACES.glob("*/rank0.json.gz"), key=lambda path: path.stat().st_size)
    copies = tmp_path / "copies"
    copies.mkdir()
    text = gzip.decompress(source.read_bytes())
    assert text.count(b'"rank": 0,') == 1
    for rank in range(64):
        own = text.replace(b'"rank": 0,', b'"rank": %d,' % rank)
        (copies / f"rank{rank}.json.gz").write_bytes(gzip.compress(own, 1))
    options = Options(cache=False)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        with distributed.Client(cluster) as client:
            victim = sorted(client.run(os.getpid).values())[0]
            killer = threading.Timer(1.0, os.kill, (victim, signal.SIGKILL))
            killer.start()
            spread = numbers(summarise(load(copies, options=Options(cache=False, executor=client.get_executor()))))
            killer.join()
            for _ in range(100):  # the nanny starts another
                if victim not in client.run(os.getpid).values():
                    break
                time.sleep(0.1)
            assert victim not in client.run(os.getpid).values()
    assert spread == numbers(summarise(load(copies, options=options)))


def test_no_scheduler_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="dask is not installed: pip install distributed")
    from rankscope.analysis.rank import dask as cluster

    monkeypatch.setattr(cluster, "_WAIT_S", 1)
    assert analyze([str(STRAGGLER), "--dask", "tcp://127.0.0.1:1"]) == 2
    assert "no scheduler answers" in capsys.readouterr().err


# --- object storage ------------------------------------------------------------------------------------------


@contextmanager
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server_of = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[server]'")
    pytest.importorskip("s3fs", reason="s3fs is not installed: pip install s3fs")
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "not-a-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    try:
        yield "s3"
    finally:  # else its thread would keep the tests' process
        server.stop()


@contextmanager
def gs(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="not installed: gcp-storage-emulator")
    pytest.importorskip("gcsfs", reason="gcsfs is not installed: pip install gcsfs")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = emulator.create_server("127.0.0.1", port, in_memory=True)
    server.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # asks for things that the emulator lacks
    try:
        yield "gs"
    finally:  # else its thread would keep the tests' process
        server.stop()


@pytest.fixture(params=[s3, gs])
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with request.param(monkeypatch) as scheme:
        kind = fsspec.get_filesystem_class(scheme)
        kind.clear_instance_cache()
        with suppress(FileExistsError):  # moto keeps what an earlier server had
            fsspec.filesystem(scheme).mkdir("recordings")
        yield f"{scheme}://recordings"
        kind.clear_instance_cache()


@pytest.mark.filterwarnings("ignore")  # the server's own
def test_traces_from_and_reports_to_a_bucket(bucket: str, tmp_path: Path) -> None:
    storage = fsspec.filesystem(bucket.partition(":")[0])
    storage.put(str(RUN), "recordings/run", recursive=True)
    remote = summary_of(f"{bucket}/run", "--out", f"{bucket}/reports/one", folder=tmp_path)
    assert numbers(remote) == numbers(summary_of(str(RUN), "--out", str(tmp_path / "local"), folder=tmp_path))
    storage.invalidate_cache()
    with storage.open("recordings/reports/one/summary.json") as file:
        assert numbers(json.load(file)) == numbers(remote)
    assert storage.exists("recordings/reports/one/tables/steps.parquet")
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"not-a-secret" not in written and b"not-a-key" not in written


@pytest.mark.filterwarnings("ignore")
def test_a_bucket_that_is_not_there(bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    missing = bucket.replace("recordings", "nothing-here/run")
    assert analyze([missing]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and missing in said
    assert analyze([bucket.replace("recordings", "key:secret@recordings/run")]) == 2
    said = capsys.readouterr().err
    assert "credentials in a URL" in said and "secret" not in said
