"""Models spread over processes by Megatron-core: tensor, pipeline, context and expert parallelism."""
