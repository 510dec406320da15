"""Weights & Biases, live: one run for the job, written by rank 0, with the statistics of every rank."""

from rankscope.conf.monitor_dir import MonitorDir
from rankscope.harness.group.process_group import RankContext
from rankscope.harness.watch.options import Options
from rankscope.harness.watch.sinks.guarded import Background
from rankscope.harness.watch.sinks.rank_metrics import RankMetrics, needed
from rankscope.harness.watch.sinks.sink import Sink


def open_sink(options: Options, folder: MonitorDir, context: RankContext) -> Sink | None:
    """Return the sink on rank 0, None elsewhere or if the options do not ask for it."""
    asked = options.wandb
    if not asked or context.rank != 0:
        return None
    needed("wandb")
    project = asked if isinstance(asked, str) else None
    return Background("wandb", lambda: Wandb(project, folder, context.world_size))


class Wandb(RankMetrics):
    """A run of its own beside one that the job may have. The mode (`WANDB_MODE`), host and key are those of wandb."""

    def __init__(self, project: str | None, folder: MonitorDir, world_size: int) -> None:
        import wandb  # an extra

        if wandb.setup().settings.mode == "online" and not wandb.login(prompt=False):  # it would ask, and wait
            raise RuntimeError("no API key; run `wandb login`, or set WANDB_MODE=offline")
        self._run = wandb.init(
            project=project,  # None: WANDB_PROJECT, or wandb's default
            name=folder.path.name,
            job_type="rankscope",
            dir=str(folder.path),  # it makes a folder wandb/ there
            config={"world_size": world_size},
            reinit="create_new",
            settings=wandb.Settings(console="off", save_code=False, disable_git=True),  # what is private stays here
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def last_event(self, text: str) -> None:
        self._run.summary["last_event"] = text

    def close(self) -> None:
        self._run.finish()

    def log(self, step: int, values: dict[str, float]) -> None:
        if values:
            self._run.log({"step": step, **values})
