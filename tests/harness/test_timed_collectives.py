"""What NCCL's recorder says of batches of sends and receives (entries as torch 2.11 writes them)."""

from typing import Any

from rankscope.harness.record.timed_collectives import with_batches


def entry(at: int, name: str, **more: Any) -> dict[str, Any]:
    return {"time_created_ns": at, "profiling_name": name, "process_group": ("0", "default_pg")} | more


def message(at: int, name: str, size: int) -> dict[str, Any]:
    sizes = {"input_sizes": [[size]], "output_sizes": [[size]], "input_dtypes": ["Float"]}
    return entry(at, name, is_p2p=True, p2p_seq_id=at, **sizes)


def test_a_batch_is_one_call_with_the_sizes_of_its_messages() -> None:
    entries = [
        message(1, "nccl:send 0->1", 16),
        entry(2, "nccl:coalesced", duration_ms=1.5),
        entry(3, "nccl:all_reduce", duration_ms=2.0),
        message(4, "nccl:send 0->1", 16),
        message(5, "nccl:recv 0<-1", 32),
        entry(6, "nccl:coalesced", duration_ms=0.5),
        message(7, "nccl:send 0->1", 8),  # by itself, and not done yet
    ]
    found = with_batches(entries)
    assert [(one["profiling_name"], one.get("duration_ms"), one.get("input_sizes")) for one in found] == [
        ("nccl:send 0->1", 1.5, [[16]]),
        ("nccl:all_reduce", 2.0, None),
        ("nccl:sendrecv", 0.5, [[16], [32]]),
        ("nccl:send 0->1", None, [[8]]),
    ]
