"""One rank's copy of the model: built, placed, compiled and, for training, wrapped in DDP, as configured."""

import inspect
import logging
import re
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from rankscope.conf.schema import RunConfig
from rankscope.conf.sections import DdpConfig
from rankscope.harness.group.process_group import RankContext
from rankscope.models import ReferenceModel, build_model

if TYPE_CHECKING:
    from rankscope.harness.reference.parallel import Pipeline

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Replica:
    """The model of one rank, and its batches. `raw` is the bare module, `module` the one that is called."""

    def __init__(self, config: RunConfig, context: RankContext) -> None:
        self._config = config
        self._device = context.device
        set_arithmetic(config)
        torch.manual_seed(config.seed)  # the same weights on every rank
        with context.device:
            self.model: ReferenceModel = build_model(config.model)
        self.raw = self.model.module
        if config.model.channels_last:
            self.raw = self.raw.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        # Without gradients there is nothing to reduce, so a validation loop calls the bare module.
        self.ddp = wrap(self.raw, config, context) if config.parallelism == "ddp" else None
        self.pipeline: Pipeline | None = None
        self._spread(context)
        self.module: Any = self.ddp if self.ddp is not None else self.raw
        if config.compile != "off":
            self.module = compiled(self.module, config)
        self._format = torch.channels_last if config.model.channels_last else torch.preserve_format
        self._graphs = config.compile in ("reduce-overhead", "max-autotune")

    def _spread(self, context: RankContext) -> None:
        """Spread the model over the ranks, if they do not all hold a complete copy."""
        kind = self._config.parallelism
        if kind in ("none", "ddp"):
            return
        from rankscope.harness.reference import parallel  # slow to import

        if kind in ("fsdp", "hsdp"):
            self.raw = parallel.shard(self.raw, self._config, context)  # type: ignore[arg-type]
        elif kind == "tp":
            self.raw = parallel.split_tensors(self.raw, self._config, context)  # type: ignore[arg-type]
        else:
            self.pipeline = parallel.Pipeline(self.raw, self._config, context)  # type: ignore[arg-type]
            self.raw = self.pipeline.parts

    @property
    def flops_per_sample(self) -> int:
        """Model FLOPs of one sample in a step: forward and backward, or a third of them for forward only."""
        flops = self.model.flops_per_sample
        return flops if self._config.mode == "train" else flops // 3

    def begin_step(self) -> None:
        """Begin a step: CUDA graphs may overwrite the outputs of the last one."""
        if self._graphs:
            torch.compiler.cudagraph_mark_step_begin()

    def to_device(self, tensor: Tensor) -> Tensor:
        """Copy `tensor` to the device; images get the memory format of the model."""
        tensor = tensor.to(self._device, non_blocking=self._config.data.non_blocking)
        return tensor.contiguous(memory_format=self._format) if tensor.dim() == 4 else tensor

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context in which the forward pass runs."""
        dtype = _AUTOCAST.get(self._config.precision.name)
        return torch.autocast(self._device.type, dtype=dtype) if dtype else nullcontext()


def wrap(module: nn.Module, config: RunConfig, context: RankContext) -> DistributedDataParallel:
    """Wrap `module` in DistributedDataParallel with the options of `config.ddp`."""
    ddp = config.ddp
    wrapped = DistributedDataParallel(
        module,
        device_ids=[context.local_rank] if context.cuda else None,
        bucket_cap_mb=ddp.bucket_cap_mb,
        static_graph=ddp.static_graph,
        find_unused_parameters=ddp.find_unused_parameters,
        gradient_as_bucket_view=ddp.gradient_as_bucket_view,
        **_without_broadcasts(ddp),
    )
    if ddp.comm_hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=ddp.powersgd_rank,
            start_powerSGD_iter=2,  # the earliest; the default of 1000 comes after all measured steps
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif ddp.comm_hook != "none":
        hooks = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
        wrapped.register_comm_hook(None, hooks[ddp.comm_hook])
    return wrapped


def bucket_bytes(ddp: DistributedDataParallel) -> list[int] | None:
    """Return the sizes of DDP's buckets in the order of reduction; None before they are final."""
    said = str(ddp._get_ddp_logging_data().get("rebuilt_bucket_sizes", ""))
    return [int(size) for size in said.split(",")] if re.fullmatch(r"\s*\d+(?:,\s*\d+)*\s*", said) else None


def compiled(module: nn.Module, config: RunConfig) -> Any:
    """Compile `module` after DDP has wrapped it, so that the graph is split at the buckets and overlap is kept."""
    # A graph with recomputed activations cannot be split; then all gradients meet at the end of the backward pass.
    torch._dynamo.config.optimize_ddp = not config.model.activation_checkpointing
    for name in ("ctx_manager", "torch"):  # hide warnings that compiled code drops the ranges of DDP
        logger = logging.getLogger(f"torch._dynamo.variables.{name}")
        logger.addFilter(lambda record: "will be ignored" not in record.getMessage())
    return torch.compile(module, mode=None if config.compile == "default" else config.compile)


def _without_broadcasts(config: DdpConfig) -> dict[str, Any]:
    """Return the argument that disables broadcasts of buffers, under its name in this version of torch."""
    if config.broadcast_buffers:
        return {}
    names = inspect.signature(DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False}


def set_arithmetic(config: RunConfig) -> None:
    """Set the arithmetic of fp32 products, and let cuDNN choose its convolutions by benchmark.

    cudnn.benchmark is on, as in any tuned job with fixed shapes; it runs in the first steps, which are not measured.
    """
    tf32 = config.precision.name == "tf32"
    with warnings.catch_warnings():
        # Some releases recommend a newer setting, which breaks torch.compile in the same releases.
        warnings.filterwarnings("ignore", message="Please use the new API settings to control TF32")
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
