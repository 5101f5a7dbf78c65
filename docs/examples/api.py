"""The Python API in one page: a function over an array, its shards as they come, a clustering job over named arrays.

`python docs/examples/api.py WHERE`, where WHERE is a farm: its root (`~/.muster`), or `user@host` from elsewhere. It
needs an agent that has joined. docs/api.md explains it; the tests run it, as a notebook too.
"""

# %% a farm: a folder on the server itself, `user@host` or `host:/root` from elsewhere
import os
import sys
from pathlib import Path

import numpy as np

from muster import Farm

where = os.environ.get("FARM") or (sys.argv[1] if len(sys.argv) > 1 else "~/.muster")
farm = Farm(Path(where).expanduser() if where.startswith(("~", "/")) else where)
print(farm, [agent.name for agent in farm.agents()])

# %% a function over the rows of an array; what it refers to goes along as text
SCALE = 0.5


def centered(rows):
    return rows - rows.mean(axis=1, keepdims=True)


def features(rows, power):
    """One shard's rows → one result per row."""
    return {"energy": (SCALE * centered(rows) ** power).sum(axis=1), "top": rows.argmax(axis=1)}


images = np.random.default_rng(0).normal(size=(2_000, 64)).astype("f4")
job = farm.map(features, images, power=2, shard={"rows": 250})

# %% its shards, each once, while the job runs
total = 0.0
for shard in job.stream():
    total += float(shard.outputs["energy"].sum())
print(f"{job.id}: an energy of {total:.0f} in all")

# %% its result: layer → output → a mapped array
result = job.result()
energy = result["array"]["energy"]
np.testing.assert_allclose(energy, features(images, 2)["energy"], rtol=1e-5)
np.testing.assert_array_equal(result.array("top"), images.argmax(axis=1))

# %% any job: the fields of a job file as keyword arguments; arrays by name become layers
weights = {"conv1": images[:200], "fc": images[200:300]}
clusters = farm.submit(kind="cluster", source=weights, params={"n_clusters": 8}, name="api").result()
print({layer: outputs["centers"].shape for layer, outputs in clusters.items()})

# %% what else there is
print(job.status().state, job.logs(), [one.id for one in farm.jobs()][-2:])
