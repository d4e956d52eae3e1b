"""Parts of this package that run in verl's processes, Ray's workers included, and in no other."""

from selfplay_pipeline.core.garbage import collect_seldom

collect_seldom()
