"""Why a drafter's proposals are not accepted: its plausible mismatches with a target, tried one by one."""

from draftproof.audit.doctor.corrections import KINDS
from draftproof.audit.doctor.examine import DoctorOptions, diagnose
from draftproof.audit.doctor.findings import DoctorReport, Finding, Trial
from draftproof.audit.doctor.pair import Pair, load_pair
from draftproof.audit.doctor.report import as_document, as_table
from draftproof.audit.doctor.scoring import Score

__all__ = [
    "KINDS",
    "DoctorOptions",
    "DoctorReport",
    "Finding",
    "Pair",
    "Score",
    "Trial",
    "as_document",
    "as_table",
    "diagnose",
    "load_pair",
]
