"""A parameter server with 1 to 20 workers, as the study had it: a small convolution on CIFAR-10. Ours beside theirs."""

from benchmarks.studies.points import Study
from benchmarks.studies.training.measuring import measure
from benchmarks.studies.training.page import page
from benchmarks.studies.training.settings import points

STUDY = Study("training", points, measure, page)
