"""Extensions of verl for offline training, through verl's own extension points.

verl imports this package itself, in every one of its processes (environment variable VERL_USE_EXTERNAL_MODULES). The
rest of the package must not import anything from here, because that would import torch and verl.
"""

import os

from selfplay_pipeline.core.loopback import keep_torch_local

if os.environ.get("VERL_PLATFORM") == "cpu":
    from selfplay_pipeline.train.verl import cpu as cpu

from selfplay_pipeline.train.verl import master_port as master_port
from selfplay_pipeline.train.verl import safe_load as safe_load
from selfplay_pipeline.train.verl import trainer as trainer

keep_torch_local()
