"""`torch.distributed.pipelining`: a model in stages, one on each rank. `calque.parallel.pipeline` has stages on several devices of one process."""

from calque.compat.refused import refused, refused_class

__all__ = ["Pipe", "PipelineStage", "Schedule1F1B", "ScheduleGPipe", "ScheduleInterleaved1F1B", "SplitPoint", "build_stage", "pipe_split", "pipeline"]

Pipe, PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B, SplitPoint = (
    refused_class(f"torch.distributed.pipelining.{name}") for name in __all__[:6]
)
build_stage, pipe_split, pipeline = (refused(f"torch.distributed.pipelining.{name}") for name in __all__[6:])
