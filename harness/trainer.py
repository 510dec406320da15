"""The training step of one rank: a model wrapped and compiled as configured, and one call that does a step."""

import inspect
import logging
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from rankscope.conf.schema import RunConfig
from rankscope.conf.sections import DdpConfig, OptimizerConfig
from rankscope.harness.data import Batches
from rankscope.harness.faults import Faults
from rankscope.harness.process_group import RankContext
from rankscope.harness.ranges import Ranges
from rankscope.harness.step_timer import StepTimer
from rankscope.models import ReferenceModel, build_model

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Trainer:
    """Owns the module, the optimizer and the scaler of one rank."""

    def __init__(self, config: RunConfig, context: RankContext) -> None:
        self._config = config
        self._device = context.device
        set_arithmetic(config)
        torch.manual_seed(config.seed)  # the same weights on every rank
        with context.device:
            self.model: ReferenceModel = build_model(config.model)
        module = self.model.module
        if config.model.channels_last:
            module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.ddp = wrap(module, config, context) if config.ddp.enabled else None
        self.module: Any = self.ddp if self.ddp is not None else module
        if config.compile != "off":
            self.module = compiled(self.module, config)
        self.optimizer = make_optimizer(config.optimizer, module)
        self.scaler = torch.amp.GradScaler(context.device.type, enabled=config.precision.name == "fp16")
        self._format = torch.channels_last if config.model.channels_last else torch.preserve_format

    def step(self, batches: Batches, ranges: Ranges, timer: StepTimer, faults: Faults, *, read_loss: bool) -> None:
        """Do one optimizer step over all its micro-steps; gradients meet in the last one."""
        count = self._config.gradient_accumulation
        losses: list[Tensor] = []
        if self._config.compile in ("reduce-overhead", "max-autotune"):
            torch.compiler.cudagraph_mark_step_begin()
        for micro in range(count):
            with ranges.data_wait:
                inputs, targets, first = batches.next()
            if first:
                timer.mark_first_of_epoch()
            inputs, targets = faults.on_batch(inputs, targets)
            with ranges.h2d:
                faults.act("on_copy")
                inputs, targets = self.to_device(inputs), self.to_device(targets)
            faults.act("on_host")
            with self._local_gradients() if micro < count - 1 else nullcontext():
                with ranges.forward:
                    faults.act("on_device")
                    with self.autocast():
                        loss = self.model.loss(self.module(inputs), targets)
                faults.act("after_forward", loss)
                if read_loss:
                    losses.append(loss.detach().clone())  # a CUDA graph's output is overwritten by the next replay
                with ranges.backward:
                    self.scaler.scale(loss / count if count > 1 else loss).backward()
            faults.act("after_backward")
        with ranges.optimizer:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)
        if losses:
            timer.read_loss(torch.stack(losses).mean())

    def to_device(self, tensor: Tensor) -> Tensor:
        """Copy `tensor` to the device; images get the model's memory format there."""
        tensor = tensor.to(self._device, non_blocking=self._config.data.non_blocking)
        return tensor.contiguous(memory_format=self._format) if tensor.dim() == 4 else tensor

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context in which the forward pass runs."""
        dtype = _AUTOCAST.get(self._config.precision.name)
        return torch.autocast(self._device.type, dtype=dtype) if dtype else nullcontext()

    def _local_gradients(self) -> AbstractContextManager[Any]:
        return self.ddp.no_sync() if self.ddp is not None and self._config.ddp.no_sync else nullcontext()


def wrap(module: nn.Module, config: RunConfig, context: RankContext) -> DistributedDataParallel:
    """Put `module` into DistributedDataParallel with the levers of `config.ddp`."""
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
            start_powerSGD_iter=2,  # the earliest; the default of 1000 is beyond any measured step
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif ddp.comm_hook != "none":
        hooks = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
        wrapped.register_comm_hook(None, hooks[ddp.comm_hook])
    return wrapped


def compiled(module: nn.Module, config: RunConfig) -> Any:
    """Compile `module`, which DDP wraps already: so the graph is split at the buckets and the overlap is kept."""
    # A graph with recomputed activations cannot be split; then all gradients meet at the end of the backward pass.
    torch._dynamo.config.optimize_ddp = not config.model.activation_checkpointing
    for name in ("ctx_manager", "torch"):  # that DDP's own ranges vanish in compiled code is no news to the user
        logger = logging.getLogger(f"torch._dynamo.variables.{name}")
        logger.addFilter(lambda record: "will be ignored" not in record.getMessage())
    return torch.compile(module, mode=None if config.compile == "default" else config.compile)


def _without_broadcasts(config: DdpConfig) -> dict[str, Any]:
    """Return the argument that stops the buffers' broadcasts, by the name that this torch has for it."""
    if config.broadcast_buffers:
        return {}
    names = inspect.signature(DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False}


def make_optimizer(config: OptimizerConfig, module: nn.Module) -> torch.optim.Optimizer:
    """Build AdamW, or SGD with momentum 0.9, in the implementation asked for."""
    options: dict[str, Any] = {
        "lr": config.lr,
        "weight_decay": config.weight_decay,
        "foreach": config.impl == "foreach",
        "fused": config.impl == "fused",
    }
    if config.name == "sgd":
        return torch.optim.SGD(module.parameters(), momentum=0.9, **options)
    return torch.optim.AdamW(module.parameters(), **options)


def set_arithmetic(config: RunConfig) -> None:
    """Choose how fp32 products are computed, and let cuDNN choose its convolutions by trial.

    cudnn.benchmark is on, as in any tuned job with fixed shapes; its trials fall into the first, unmeasured steps.
    """
    tf32 = config.precision.name == "tf32"
    with warnings.catch_warnings():
        # Some releases announce a newer switch, whose use breaks torch.compile in the same releases.
        warnings.filterwarnings("ignore", message="Please use the new API settings to control TF32")
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
