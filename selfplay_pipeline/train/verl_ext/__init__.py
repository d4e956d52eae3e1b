"""What verl needs to train offline, through verl's own extension points.

verl imports this package itself, in every one of its processes (environment variable VERL_USE_EXTERNAL_MODULES).
Nothing here may be imported by the rest of the package: torch and verl come with it.
"""

import os

from selfplay_pipeline.loopback import keep_torch_local

if os.environ.get("VERL_PLATFORM") == "cpu":
    from selfplay_pipeline.train.verl_ext import cpu as cpu

from selfplay_pipeline.train.verl_ext import master_port as master_port
from selfplay_pipeline.train.verl_ext import safe_load as safe_load
from selfplay_pipeline.train.verl_ext import trainer as trainer

keep_torch_local()
