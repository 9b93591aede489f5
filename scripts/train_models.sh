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
local_model() { # STAGE NAME: the local network of a stage as a model, also in 8 bits, to describe training pairs
    test -e "$runs/$2/int8.json" && return
    contextdesc export "$(checkpoint "$1")" -o "$runs/$2"
    contextdesc quantise "$runs/$2" --photos "$data/photos" --cache "$runs/cache" --limit 3
}
scenes=(--scenes "$data/scenes")

train sift-context/1-context.toml sift-context "${scenes[@]}"
contextdesc export "$(checkpoint sift-context)" --ratio-scenes "$data/scenes" \
    --card configs/data.json --card configs/sift-context/card.json -o "$weights/sift-context"

train contextdesc/1-local.toml 1-local
train contextdesc/2-local.toml 2-local "${scenes[@]}" --init "$(checkpoint 1-local)"
train contextdesc/2b-local.toml 2b-local "${scenes[@]}" --init "$(checkpoint 2-local)"
train contextdesc/2c-local.toml 2c-local "${scenes[@]}" --init "$(checkpoint 2b-local)"
local_model 2c-local 2c-model
train contextdesc/2d-local.toml 2d-local "${scenes[@]}" --init "$(checkpoint 2c-local)" --base "$runs/2c-model"
train contextdesc/2e-local.toml 2e-local "${scenes[@]}" --init "$(checkpoint 2d-local)" --base "$runs/2c-model"
local_model 2e-local 2e-model
train contextdesc/2f-local.toml 2f-local "${scenes[@]}" --init "$(checkpoint 2e-local)" --base "$runs/2e-model"
local_model 2f-local 2f-model
train contextdesc/2g-local.toml 2g-local "${scenes[@]}" --init "$(checkpoint 2f-local)" --base "$runs/2f-model"
local_model 2g-local 2g-model
train contextdesc/2h-local.toml 2h-local "${scenes[@]}" --init "$(checkpoint 2g-local)" --base "$runs/2g-model"
local_model 2h-local 2h-model
train contextdesc/2i-local.toml 2i-local "${scenes[@]}" --init "$(checkpoint 2h-local)" --base "$runs/2h-model"
local_model 2i-local local-model
train contextdesc/3-context.toml 3-context "${scenes[@]}" --base "$runs/local-model"
contextdesc export "$(checkpoint 3-context)" --base "$runs/local-model" --ratio-scenes "$data/scenes" \
    --card configs/data.json --card configs/contextdesc/card.json -o "$weights/contextdesc"
contextdesc quantise "$weights/contextdesc" --photos "$data/photos" "${scenes[@]}" --cache "$runs/cache"
