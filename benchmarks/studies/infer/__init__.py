"""Batched inference of an MLP of 784-448-160-10, as the study had it: ours, Ray's here, theirs."""

from benchmarks.studies.infer.measuring import measure
from benchmarks.studies.infer.page import page
from benchmarks.studies.infer.settings import points
from benchmarks.studies.points import Study

STUDY = Study("infer", points, measure, page)
