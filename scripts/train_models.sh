#!/usr/bin/env bash
# Repeats the training of the packaged models, from raw data to packaged files:
#   scripts/train_models.sh DATA RUNS [OPTIONS]
# DATA has photos/ (single photographs) and scenes/ (as `contextdesc dataset build` makes them); RUNS takes
# checkpoints, logs and the cache (about 20 GB). OPTIONS, such as `--steps 2`, go to every training. Models are
# written to WEIGHTS, by default those of the package. Interrupted anywhere and started again, it goes on.
set -euo pipefail
cd "$(dirname "$0")/.."
data=$(realpath "$1") runs=$(realpath -m "$2") weights=$(realpath -m "${WEIGHTS:-src/contextdesc/weights}")
options=("${@:3}")
export MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184

train() { # CONFIG NAME OPTIONS...
    local config=$1 name=$2
    shift 2
    contextdesc train "configs/$config" --photos "$data/photos" -o "$runs/$name" --cache "$runs/cache" \
        "$@" "${options[@]}"
}
checkpoint() { echo "$runs/$1/checkpoint.safetensors"; }
scenes=(--scenes "$data/scenes")

train sift-context/1-context.toml sift-context "${scenes[@]}"
contextdesc export "$(checkpoint sift-context)" --ratio-scenes "$data/scenes" \
    --card configs/data.json --card configs/sift-context/card.json -o "$weights/sift-context"

train contextdesc/1-local.toml 1-local
train contextdesc/2-local.toml 2-local "${scenes[@]}" --init "$(checkpoint 1-local)"
train contextdesc/2b-local.toml 2b-local "${scenes[@]}" --init "$(checkpoint 2-local)"
train contextdesc/2c-local.toml 2c-local "${scenes[@]}" --init "$(checkpoint 2b-local)"
contextdesc export "$(checkpoint 2c-local)" -o "$runs/local-model"
train contextdesc/3-context.toml 3-context "${scenes[@]}" --base "$runs/local-model"
contextdesc export "$(checkpoint 3-context)" --base "$runs/local-model" --ratio-scenes "$data/scenes" \
    --card configs/data.json --card configs/contextdesc/card.json -o "$weights/contextdesc"
contextdesc quantise "$weights/contextdesc" --photos "$data/photos" "${scenes[@]}" --cache "$runs/cache"
