"""A search from Python: which learning rate and width, for a small network on scikit-learn's digits.

coordinator serve --detach && agent join ~/.muster --detach && python docs/examples/tune.py
"""

from __future__ import annotations

import sys

from muster import Farm

SPACE = {
    "lr": {"loguniform": [0.003, 1.0]},
    "momentum": {"uniform": [0.1, 0.9]},
    "hidden": {"randint": [32, 512]},
    "batch": {"choice": [32, 64, 128]},
}

if __name__ == "__main__":
    farm = Farm(sys.argv[1] if len(sys.argv) > 1 else None)
    study = farm.tune(
        "mlp", SPACE, data="digits", metric="accuracy", trials=27, scheduler="halving", stop={"iterations": 27}
    )
    for trial in study.trials[:5]:
        print(f"{trial.metrics['accuracy']:.4f} after {trial.iterations:2} iterations: {trial.config}")
    print(f"test rows: {study.summary.test}; the model is {study.model}")
