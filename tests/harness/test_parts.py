"""The parts of a rank that need no other rank: data, faults, schedule, training step."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from rankscope.conf import ConfigError, PassDir, RankDir, RunConfig, RunDir, parse_config
from rankscope.conf.contract import StepRow
from rankscope.harness.faults.planted import Faults, InjectedFault
from rankscope.harness.group.process_group import RankContext
from rankscope.harness.record.progress import reporting
from rankscope.harness.record.ranges import Ranges
from rankscope.harness.record.schedule import Plan, plans
from rankscope.harness.record.step_timer import StepTimer
from rankscope.harness.record.turn import Turn
from rankscope.harness.reference import datasets_on_disk
from rankscope.harness.reference.data import Batches, make_batches
from rankscope.harness.reference.module_ranges import ModuleRanges
from rankscope.harness.reference.replica import Replica
from rankscope.harness.reference.train import Trainer
from rankscope.models import SampleSpec

RUNS = ("first", "second", "third")
CPU = torch.device("cpu")
FEATURES = SampleSpec(kind="features", shape=(8,), classes=4)


def config_of(**keys: Any) -> RunConfig:
    return parse_config({"model": {"name": "mlp"}, "device": "cpu", "batch_size": 2} | keys)


def context_of(rank: int = 0, world_size: int = 1) -> RankContext:
    return RankContext(
        rank=rank,
        local_rank=rank,
        world_size=world_size,
        local_world_size=world_size,
        device=CPU,
        backend=None,
        host="here",
        boot_id=None,
    )


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


def test_windows_of_one_process_warm_up_once(tmp_path: Path) -> None:
    profile = {"wait": 1, "warmup": 1, "active": 2, "repeat": 2, "with_stack": True}
    config = config_of(steps=2, warmup_steps=1, timed_steps=3, profile=profile)

    def of(*names: str) -> list[Plan]:
        return plans(config, RunDir(tmp_path), names)

    def phases(*names: str) -> list[list[str]]:
        return [list(plan.phases) for plan in of(*names)]

    assert phases("plain") == [["warmup", "measured", "measured"]]
    assert phases("torch") == [["wait", "warmup", *["active"] * 3] * 2], "one more, for the analysis to leave out"
    together = phases("plain", "timed", "torch", "detail")
    torch, detail = ["warmup", *["active"] * 3] * 2, ["warmup", "active", "active"] * 2
    assert together[1:] == [["warmup"] * 2 + ["measured"] * 3, torch, detail]
    options = [plan.profile for plan in plans(config, RunDir(tmp_path), ["torch", "detail"])]
    assert [(item.record_shapes, item.with_stack) for item in options] == [(False, True), (True, True)]


def test_windows_fit_a_job_that_is_known_to_be_short(tmp_path: Path) -> None:
    for total in range(3, 20):
        (plan,) = plans(config_of(), RunDir(tmp_path), ["torch"], total)
        assert plan.counted >= 1 and len(plan.phases) <= total


def test_runs_take_turns(tmp_path: Path) -> None:
    """Runs of two ranks set up side by side, but not while another measures; and they measure one after another."""
    log: list[tuple[str, str]] = []
    ready, done = threading.Event(), threading.Event()

    def rank(run: str, number: int) -> None:
        folder = RankDir(tmp_path / run / "ranks" / str(number))
        folder.path.mkdir(parents=True)
        with Turn(str(tmp_path / "lock"), PassDir(tmp_path / run), number) as turn, reporting(folder, of=1) as progress:
            log.append(("set up", run))
            if run != "first":
                ready.wait(10)
            turn.measure(progress)
            log.append(("measure", run))
            done.wait(10 if run == "first" else 1.0 * (number == 0))  # the rank that holds the lock leaves last
            log.append(("end", run))

    def comes(number: int) -> list[tuple[str, str]]:
        """Return what has happened when so much has, and a moment later."""
        deadline = time.monotonic() + 10
        while len(log) < number and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)
        happened = log.copy()
        log.clear()
        return happened

    threads = [threading.Thread(target=rank, args=(run, number)) for run in RUNS for number in (1, 0)]
    for thread in threads[:2]:
        thread.start()
    assert sorted(comes(4)) == [("measure", "first")] * 2 + [("set up", "first")] * 2
    for thread in threads[2:]:
        thread.start()
    assert comes(0) == []
    done.set()
    assert sorted(comes(6)) == [("end", "first")] * 2 + [("set up", "second")] * 2 + [("set up", "third")] * 2
    done.clear()
    ready.set()
    happened = comes(8)
    assert {run for _, run in happened[:4]} in ({"second"}, {"third"})
    assert [what for what, _ in happened] == ["measure", "measure", "end", "end"] * 2
    for thread in threads:
        thread.join(10)


def test_an_epoch_gives_each_rank_its_own_samples_once() -> None:
    config = config_of(world_size=2, data={"samples": 8})
    seen = []
    for rank in (0, 1):
        batches = make_batches(config, context_of(rank, 2), FEATURES)
        epochs = [[batches.next() for _ in range(2)] for _ in range(2)]
        assert [[first for _, _, first in epoch] for epoch in epochs] == [[True, False]] * 2
        seen.append([torch.cat([inputs for inputs, _, _ in epoch]) for epoch in epochs])
    for epoch in (0, 1):
        samples = torch.cat([seen[0][epoch], seen[1][epoch]])
        assert len({tuple(sample.tolist()) for sample in samples}) == 8
    assert not torch.equal(seen[0][0], seen[0][1])  # shuffled anew


def test_fewer_samples_than_a_batch_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data.samples=7: fewer than one batch of all ranks \(8 samples\)"):
        config_of(world_size=2, batch_size=4, data={"samples": 7})


@pytest.mark.parametrize(("model", "data", "kind"), [("gpt", "tokens", "tokens"), ("resnet", "images", "image")])
def test_a_data_set_on_disk_is_made_once(
    model: str, data: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets_on_disk, "IMAGES", 4)
    monkeypatch.setattr(datasets_on_disk, "TOKENS", 1000)
    config = config_of(model={"name": model}, data={"name": data, "root": str(tmp_path / "data")})
    shape = {"tokens": (16,), "image": (3, 32, 32)}[kind]
    spec = SampleSpec(kind=kind, shape=shape, classes=10)  # type: ignore[arg-type]
    made: list[Batches] = []
    threads = [threading.Thread(target=lambda: made.append(make_batches(config, context_of(), spec))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*") if path.name != ".lock"}
    batches = [batches.next() for batches in (*made, make_batches(config, context_of(), spec))]
    assert len(batches) == 5 and stamps
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}  # the fifth found it made
    assert not [path for path in stamps if path.suffix == ".tmp"]
    for inputs, targets, _ in batches:
        assert inputs.shape == (2, *shape)
        torch.testing.assert_close(inputs, batches[0][0])
        torch.testing.assert_close(targets, batches[0][1])
    if kind == "tokens":
        torch.testing.assert_close(batches[0][0][:, 1:], batches[0][1][:, :-1])  # a target is the next token


def test_images_are_cut_to_size_and_centred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets_on_disk, "IMAGES", 2)
    config = config_of(model={"name": "resnet"}, data={"name": "images", "root": str(tmp_path)})
    inputs, _, _ = make_batches(config, context_of(), SampleSpec(kind="image", shape=(3, 32, 32), classes=2)).next()
    assert inputs.dtype == torch.float32
    assert -1 <= inputs.min() < -0.5 < 0.5 < inputs.max() <= 1


def fault_of(kind: str, rank: int = 0, keys: dict[str, Any] | None = None) -> Faults:
    config = config_of(world_size=2, scenario={"fault": kind, "rank": 1, "step": 3, "ms": 30.0} | (keys or {}))
    return Faults(config, context_of(rank, 2))


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("raise", InjectedFault, "scenario.fault=raise"),
        ("exit", SystemExit, "7"),
        ("oom", RuntimeError, "allocate memory"),
    ],
)
def test_a_fault_ends_its_rank_at_its_step(kind: str, error: type[BaseException], message: str) -> None:
    for step in range(5):
        fault_of(kind, rank=0).at_step(step)  # not this rank
    fault = fault_of(kind, rank=1)
    fault.at_step(2)
    with pytest.raises(error, match=message):
        fault.at_step(3)


@pytest.mark.parametrize(("kind", "rank", "slept"), [("host", 1, True), ("data", 1, True), ("host", 0, False)])
def test_a_fault_slows_from_its_step_on(kind: str, rank: int, slept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    fault = fault_of(kind, rank)
    collate = fault.slow_collate(list)
    for step in range(5):
        fault.at_step(step)
        fault.act("on_host")
        assert collate((1, 2)) == [1, 2]
    assert naps == ([0.03, 0.03] if slept else [])  # in steps 3 and 4


def test_a_fault_of_all_ranks_in_turn_and_of_some_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    acted = []
    for rank in (0, 1):
        fault = fault_of("host", rank, {"rank": "rotating", "step": 2, "steps": 3})
        for step in range(8):
            naps.clear()
            fault.at_step(step)
            fault.act("on_host")
            acted += [(rank, step)] if naps else []
    assert acted == [(0, 2), (0, 4), (1, 3)]


def test_several_faults_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    fault = fault_of("host", 1, {"more": [{"fault": "data", "rank": "all", "ms": 10}]})
    collate = fault.slow_collate(list)
    fault.at_step(3)
    fault.act("on_host")
    collate((1, 2))
    assert naps == [0.03, 0.01]


def test_samples_are_read_slowly_also_by_workers() -> None:
    config = config_of(num_workers=1, scenario={"fault": "storage", "rank": "all", "ms": 40, "step": 1})
    faults = Faults(config, context_of())
    batches = make_batches(config, context_of(), FEATURES, wrap=faults.slow_dataset)
    batches.next()
    faults.at_step(1)
    for _ in range(3):  # what was prefetched before
        batches.next()
    began = time.monotonic()
    for _ in range(2):
        batches.next()
    assert time.monotonic() - began >= 0.08  # two batches of two samples, of which one may be under way
    batches.close()


def test_sequences_of_all_ranks_but_one_are_shortened() -> None:
    tokens = torch.arange(16).reshape(2, 8)
    shapes = []
    for rank in (0, 1):
        faults = fault_of("lengths", rank, {"step": 0, "share": 0.25})
        faults.at_step(0)
        shapes.append(faults.on_batch(tokens, tokens)[0].shape)
    assert shapes == [(2, 2), (2, 8)]


def test_items_are_read_after_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    config = config_of(ddp={"enabled": False}, scenario={"fault": "item", "rank": "all"})
    replica, faults = Replica(config, context_of()), Faults(config, context_of())
    faults.attach(replica.raw)
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: read.append(1))
    faults.at_step(0)
    replica.module(torch.zeros(1, *replica.model.sample.shape))
    assert len(read) == 4  # blocks of the tiny MLP


def test_a_fault_that_needs_a_gpu_is_refused_without() -> None:
    with pytest.raises(ConfigError, match="allocator: needs a GPU"):
        Faults(parse_config({"scenario": {"fault": "allocator"}}), context_of())


def train(config: RunConfig, steps: int, replica: Replica | None = None) -> tuple[Replica, list[StepRow]]:
    replica = replica or Replica(config, context_of())
    trainer = Trainer(config, context_of(), replica)
    timer = StepTimer(CPU)
    ranges = Ranges(timer, annotate=False, nvtx=None)
    batches = make_batches(config, context_of(), replica.model.sample)
    for step in range(steps):
        timer.begin(step, "measured")
        trainer.step(batches, ranges, timer, Faults(config, context_of()), read_loss=True)
        timer.end()
    timer.close()
    return replica, timer.rows()


def test_accumulated_micro_steps_are_one_large_step() -> None:
    optimizer = {"name": "sgd", "lr": 0.1}
    ddp = {"enabled": False}
    whole, whole_rows = train(config_of(batch_size=8, optimizer=optimizer, ddp=ddp), 3)
    parts, parts_rows = train(config_of(batch_size=2, gradient_accumulation=4, optimizer=optimizer, ddp=ddp), 3)
    for a, b in zip(whole.model.module.parameters(), parts.model.module.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    for row, other in zip(whole_rows, parts_rows, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-5)
    assert whole_rows[-1]["loss"] < whole_rows[0]["loss"]


def test_micro_steps_meet_the_other_ranks_once(group: None) -> None:
    config = config_of(gradient_accumulation=4)
    replica = Replica(config, context_of())
    reductions: list[int] = []

    def count(_: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        reductions.append(bucket.index())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    assert replica.ddp is not None
    replica.ddp.register_comm_hook(None, count)
    train(config, 3, replica)
    assert reductions == [0, 0, 0]  # one bucket, in each of three steps


@pytest.mark.parametrize(
    "keys",
    [
        {"ddp": {"comm_hook": "powersgd"}},
        {"ddp": {"comm_hook": "fp16", "broadcast_buffers": False}},
        {"ddp": {"static_graph": True}, "model": {"name": "gpt", "activation_checkpointing": True}},
        {"ddp": {"bucket_cap_mb": 0.1, "gradient_as_bucket_view": False}, "precision": {"name": "bf16"}},
        {"model": {"name": "resnet", "channels_last": True}, "optimizer": {"impl": "fused"}},
        {"optimizer": {"name": "sgd", "impl": "forloop"}, "precision": {"name": "tf32"}},
    ],
)
def test_levers_train_without_a_warning(group: None, keys: dict[str, Any]) -> None:
    _, rows = train(config_of(**keys), 5)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert all(row["loss"] == row["loss"] for row in rows)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_device_times_come_from_the_device() -> None:
    device = torch.device("cuda", 0)
    timer = StepTimer(device)
    ranges = Ranges(timer, annotate=False, nvtx=None)
    matrix = torch.randn(2048, 2048, device=device)
    for step in range(3):
        timer.begin(step, "measured")
        with ranges.forward:
            for _ in range(20):
                matrix @ matrix
        timer.read_loss(matrix.sum())
        timer.end()
    timer.close()
    torch.cuda.synchronize()
    for row in timer.rows():
        assert 0 < row["forward_ns"] <= row["device_ns"]
        assert row["backward_ns"] is None and row["loss"] is not None
        assert row["memory_peak_bytes"] >= row["memory_allocated_bytes"] > 0


def test_modules_become_ranges_forward_and_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    ModuleRanges(["*"], model, nvtx=None, cuda=False).hook(annotate=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        model(torch.ones(1, 4, requires_grad=True)).sum().backward()
    names = [event.name for event in recorded.events() if event.name.startswith("module: ")]
    assert sorted(names) == ["module: 0", "module: 1", "module: backward of 0", "module: backward of 1"]
    with pytest.raises(ConfigError, match=r"profile\.modules=head.*it has 0, 1, 1\.0, 1\.1"):
        ModuleRanges(["head"], model, nvtx=None, cuda=False)
