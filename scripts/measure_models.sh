#!/usr/bin/env bash
# Measures anew what depends on the packaged weights, and writes results, cards and pages:
#   scripts/measure_models.sh DATA WORK
# DATA has train/photos, train/scenes and eval/oxford-affine, hpatches-sequences and strecha; WORK remembers what is
# finished with which weights, so that a run that was stopped goes on, and new weights of one model leave alone what
# is of the other. Times (docs/speed.md, docs/scale.md) are not among it, nor are the figures of the README, which a
# test compares with the results.
set -euo pipefail
cd "$(dirname "$0")/.."
data=$(realpath "$1") work=$(realpath -m "$2")
mkdir -p "$work"
models=(contextdesc sift-context)

once() { # NAME COMMAND...: unless it has succeeded before with the weights of the models in `of`
    local name=$1 key
    shift
    key=$(for model in "${of[@]}"; do cat "src/contextdesc/weights/$model/model.json"; done | sha256sum | cut -c1-16)
    test -e "$work/$name-$key.done" && return
    echo "+ $*"
    "$@"
    touch "$work/$name-$key.done"
}
benchmark() { # PROTOCOL DATA RESULT OPTIONS...
    local protocol=$1 on=$2 result=$3
    shift 3
    once "$result" contextdesc benchmark "$protocol" --data "$data/$on" -o "docs/results/$result.json" "$@"
}

of=("${models[@]}")
once verdict python scripts/calibrate_verdict.py --data "$data/train" --cache "$work/verdict"

for model in "${models[@]}"; do
    of=("$model") terms=$model:none,$model:visual,$model:geometric,$model
    # A draw of pairs that nothing was chosen on
    benchmark terms train "terms-$model" --methods "$model" --set seed=300
    benchmark heinly eval/oxford-affine "heinly-$model" --methods "sift,rootsift,$terms" --baseline rootsift
    benchmark hsequences eval/hpatches-sequences "hsequences-$model" --methods "$terms"
    benchmark pairs eval/strecha "pairs-$model" --methods "$terms"
done

of=("${models[@]}")
benchmark hsequences eval/hpatches-sequences hsequences-two --baseline rootsift \
    --methods sift,rootsift,sift-context:none,sift-context,contextdesc:none,contextdesc
benchmark pairs eval/strecha pairs-strecha --methods sift,rootsift,sift-context,contextdesc --baseline rootsift
benchmark ratio train ratio --methods sift,rootsift,sift-context,contextdesc
once sfm python scripts/sfm_numbers.py --data "$data"
held_out=et,kap_boruszyn,lund_chalmers_3,lund_chalmers_7,monstree,rock,scene_c,sceaux_castle
benchmark retrieval train/scenes retrieval-scenes --methods sift,rootsift,sift-context,contextdesc \
    --baseline rootsift --set "scenes=$held_out" --set per_scene=8 --set per_other=4 --set words=2048 \
    --set budget=1024 --set verify=50

of=(contextdesc)
once sample contextdesc match -o docs/images/matches.jpg
once pairs python scripts/retrieval_pairs.py --scenes "$data/train/scenes" --work "$work/retrieval-pairs"
once defaults python scripts/retrieval_defaults.py --scenes "$data/train/scenes" --work "$work/retrieval-defaults"
benchmark density eval/oxford-affine density-oxford --seeds 2 --limit 4 --baseline rootsift \
    --methods sift,rootsift,contextdesc:none,contextdesc
benchmark density eval/hpatches-sequences density-two --baseline rootsift \
    --methods sift,rootsift,contextdesc:none,contextdesc
benchmark domain eval/hpatches-sequences domain-two --methods sift,rootsift,contextdesc:none,contextdesc
benchmark hpatches eval/hpatches-sequences hpatches-two --methods sift,rootsift,contextdesc --baseline rootsift \
    --set cut=true --set pairs=200000
benchmark repeatability eval/oxford-affine repeatability-oxford --methods sift,contextdesc --baseline sift

for model in "${models[@]}"; do
    python scripts/model_card.py "$model"
done
python scripts/benchmarks_page.py
python scripts/retrieval_page.py
