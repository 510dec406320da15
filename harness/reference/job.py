"""The reference model as the job of one rank: trains, evaluates or serves it, and records it in a `Recording`."""

from torch.utils.data import default_collate

from rankscope.conf.schema import RunConfig
from rankscope.harness.faults.planted import Faults
from rankscope.harness.group.process_group import RankContext, join, leave
from rankscope.harness.record.progress import reporting
from rankscope.harness.record.recording import Recording
from rankscope.harness.reference.data import make_batches
from rankscope.harness.reference.evaluate_and_serve import Evaluator, Server
from rankscope.harness.reference.loop import Loop, Task
from rankscope.harness.reference.module_ranges import ModuleRanges
from rankscope.harness.reference.replica import Replica, bucket_bytes
from rankscope.harness.reference.train import PipelineTrainer, Trainer


def run(recording: Recording) -> None:
    """Do the complete work of the rank."""
    config = recording.config
    with reporting(recording.rank_dir, of=recording.needed) as progress:
        context = join(config)
        replica = Replica(config, context)
        recording.turn.measure(progress)
        faults = Faults(config, context)  # after the replica, which sets the arithmetic: some faults are measured here
        steps = recording.prepare(context, progress, keep_trace=not faults.drops_trace)
        faults.attach(replica.raw)
        recording.info |= {"parameters": replica.model.parameters, "flops_per_sample": replica.flops_per_sample}
        if config.profile.modules:
            modules = ModuleRanges(config.profile.modules, replica.raw, nvtx=recording.emitter, cuda=context.cuda)
            recording.when_detailed(modules.hook)
            recording.info["module_memory_bytes"] = modules.memory
        loop = Loop(
            steps=steps,
            task=_task(config, context, replica, faults),
            batches=make_batches(
                config, context, replica.model.sample, faults.slow_collate(default_collate), faults.slow_dataset
            ),
            ranges=recording.ranges(),
            faults=faults,
            log_every=config.log_every,
        )
        recording.begin()
        loop.run()
        # here and not in `save`: DDP answers only outside of collectives
        recording.info["bucket_bytes"] = None if replica.ddp is None else bucket_bytes(replica.ddp)
        recording.end()
        loop.batches.close()
        recording.save()
        leave(context)
        progress.enter("done")


def _task(config: RunConfig, context: RankContext, replica: Replica, faults: Faults) -> Task:
    if replica.pipeline is not None:
        replica.pipeline.before_forward(lambda: faults.act("on_device"))
        return PipelineTrainer(config, replica, replica.pipeline)
    if config.mode == "train":
        return Trainer(config, context, replica)
    return Evaluator(context, replica) if config.mode == "eval" else Server(context, replica)
