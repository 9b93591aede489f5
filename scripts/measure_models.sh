#!/usr/bin/env bash
# Measures anew what depends on the weights of `contextdesc`, and writes results, cards and pages:
#   scripts/measure_models.sh DATA WORK
# DATA has train/photos, train/scenes and eval/oxford-affine, hpatches-sequences and strecha; WORK remembers what is
# finished with these weights, so that a run that was stopped goes on. Times (docs/speed.md, docs/scale.md) are not
# among it, nor are the figures of the README, which a test compares with the results.
set -euo pipefail
cd "$(dirname "$0")/.."
weights=$(sha256sum src/contextdesc/weights/contextdesc/model.json | cut -c1-16)
data=$(realpath "$1") work=$(realpath -m "$2")/$weights
mkdir -p "$work"
terms=contextdesc:none,contextdesc:visual,contextdesc:geometric,contextdesc

once() { # NAME COMMAND...: unless it has succeeded before
    local name=$1
    shift
    test -e "$work/$name.done" && return
    echo "+ $*"
    "$@"
    touch "$work/$name.done"
}
benchmark() { # PROTOCOL DATA RESULT OPTIONS...
    local protocol=$1 on=$2 result=$3
    shift 3
    once "$result" contextdesc benchmark "$protocol" --data "$data/$on" -o "docs/results/$result.json" "$@"
}

# A draw of pairs that nothing was chosen on
benchmark terms train terms-contextdesc --methods contextdesc --set seed=300
once verdict python scripts/calibrate_verdict.py --data "$data/train" --cache "$work/verdict"
once sample contextdesc match -o docs/images/matches.jpg

benchmark heinly eval/oxford-affine heinly-contextdesc --methods "sift,rootsift,$terms" --baseline rootsift
benchmark hsequences eval/hpatches-sequences hsequences-contextdesc --methods "$terms"
benchmark hsequences eval/hpatches-sequences hsequences-two --baseline rootsift \
    --methods sift,rootsift,sift-context:none,sift-context,contextdesc:none,contextdesc
benchmark pairs eval/strecha pairs-contextdesc --methods "$terms"
benchmark pairs eval/strecha pairs-strecha --methods sift,rootsift,sift-context,contextdesc --baseline rootsift
benchmark ratio train ratio --methods sift,rootsift,sift-context,contextdesc
once sfm python scripts/sfm_numbers.py --data "$data"

held_out=et,kap_boruszyn,lund_chalmers_3,lund_chalmers_7,monstree,rock,scene_c,sceaux_castle
benchmark retrieval train/scenes retrieval-scenes --methods sift,rootsift,sift-context,contextdesc \
    --baseline rootsift --set "scenes=$held_out" --set per_scene=8 --set per_other=4 --set words=2048 \
    --set budget=1024 --set verify=50
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

python scripts/model_card.py contextdesc
python scripts/benchmarks_page.py
python scripts/retrieval_page.py
