#!/bin/bash
# Muster agents on a cluster that Slurm runs: ten machines for four hours with
#
#     sbatch --array=1-10 slurm.sh me@server
#
# `agent` must be on the PATH (activate its environment before sbatch), and `ssh me@server true` must work from a
# compute node without a question. More agents may be submitted, and some cancelled with scancel, while jobs run.
#SBATCH --job-name=muster
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@300
#SBATCH --output=muster-%A_%a.out
set -eu
where=${1:?usage: sbatch --array=1-10 slurm.sh me@server}
shift

# On the node's own disk. What was finished and could not be handed in is computed again elsewhere.
spool=$(mktemp -d "${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/muster-XXXXXX")
trap 'rm -rf "$spool"' EXIT

options=(--name "slurm-$SLURM_JOB_ID" --spool "$spool" --cpus "${SLURM_CPUS_PER_TASK:-1}")
if [ -n "${SLURM_MEM_PER_NODE:-}" ]; then # MiB; a fifth of it is for the agent itself
    options+=(--memory "$((SLURM_MEM_PER_NODE * 4 / 5))MiB")
fi
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
    options+=(--gpus "$CUDA_VISIBLE_DEVICES")
fi

# Five minutes before the end, and by `scancel --batch --signal=TERM`, this shell alone is told: the agent finishes what
# runs, pushes and leaves. A plain scancel may end it at once; then what it had is computed again elsewhere.
agent join "$where" "${options[@]}" "$@" &
child=$!
trap 'kill -TERM "$child"' TERM
code=0
while kill -0 "$child" 2>/dev/null; do
    wait "$child" && code=0 || code=$?
done
exit "$code"
