"""What a job of the kind `infer` says of its model, and what is known of each format. Opens nothing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from muster.jobs.results.output_declarations import Declared

NAN_ROWS = "nan_rows"
BATCH_BYTES = 4 << 20  # of rows and what layers make of them, for `batch: auto`
BATCH_LIMITS = (16, 4096)
SUFFIXES = {
    ".npz": "npz",
    ".safetensors": "safetensors",
    ".skops": "skops",
    ".onnx": "onnx",
    ".pt": "torchscript",
    ".pth": "torchscript",
    ".ts": "torchscript",
    ".pkl": "pickle",
    ".pickle": "pickle",
    ".joblib": "pickle",
}
MLP_FORMATS = ("npz", "safetensors")
INERT_FORMATS = (*MLP_FORMATS, "onnx", "skops")  # nothing in them is run when they are opened
NEEDS = {"onnx": ("onnxruntime",), "torchscript": ("torch",)}
RESTS_ON = {**NEEDS, "skops": ("scipy",), "pickle": ("scipy",)}

Method = Literal["predict", "predict_proba", "predict_log_proba", "decision_function", "transform", "score_samples"]


class InferParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`model`: a file relative to the job file. What is not given is resolved at submit, and stored in the plan."""

    model: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    batch: Literal["auto"] | Annotated[int, Meta(ge=1, le=1 << 24)] = "auto"
    nan: Literal["fail", "keep"] = "fail"
    activation: Literal["relu", "tanh", "sigmoid", "none"] | None = None  # of an MLP
    final: Literal["none", "softmax", "argmax"] | None = None  # of an MLP
    method: Method | None = None  # of an estimator
    trusted: list[str] = []  # types a .skops may hold beyond those that skops knows to be safe
    trust_pickle: bool = False
    trust_torchscript: bool | msgspec.UnsetType = msgspec.UNSET  # for planning alone: in no plan, and in no digest
    device: Annotated[str, Meta(min_length=1, max_length=64)] = "cpu"
    args: dict[str, Any] = {}  # more arguments of the user's class
    outputs: Annotated[dict[str, Declared], Meta(min_length=1)] | None = None
