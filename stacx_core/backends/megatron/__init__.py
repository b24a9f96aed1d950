"""Models spread over processes by Megatron-core: tensor, pipeline, context and expert parallelism."""

import warnings

# Megatron-core says so in each of its modules on each process; nothing here needs them.
warnings.filterwarnings("ignore", r"(Transformer Engine and )?Apex (is|are) not installed", UserWarning)
warnings.filterwarnings("ignore", "`load_state_dict` is deprecated", FutureWarning, r"megatron\.core\.")
