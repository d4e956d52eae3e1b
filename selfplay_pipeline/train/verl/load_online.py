"""Extensions of verl for online training, and the replacements of its code.

verl imports this module itself, in every one of its processes (environment variable VERL_USE_EXTERNAL_MODULES). The
rest of the package must not import it, because torch and verl come with it.
"""

import os

if os.environ.get("VERL_PLATFORM") == "cpu":
    from selfplay_pipeline.train.verl import cpu as cpu
    from selfplay_pipeline.train.verl import cpu_rollout as cpu_rollout

from selfplay_pipeline.train.verl import agent_loop as agent_loop
from selfplay_pipeline.train.verl import online_trainer as online_trainer
from selfplay_pipeline.train.verl import patches

patches.apply()
