"""All faults of the commands and of the things that they depend on."""

from __future__ import annotations

from chaos import faults_disk, faults_process, faults_real, faults_server, faults_together
from chaos.cases import Case

PARTS = (faults_process, faults_disk, faults_server, faults_together, faults_real)


def cases(seed: int) -> list[Case]:
    """Returns all faults of a seed, in the order of the table."""
    return [case for part in PARTS for case in part.cases(seed)]
