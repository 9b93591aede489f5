"""Reconstruct the Strecha scenes with several descriptors on the same keypoints, and report the numbers.

`python scripts/sfm_numbers.py --data DIR` measures RootSIFT's ratio on the scenes of `DIR/train/scenes` that
were held out from all training, and stops if the packaged constant is another. Then it runs `contextdesc
benchmark sfm` on `DIR/eval/strecha`, which writes `docs/results/sfm-strecha.json`, and puts the table into
`docs/sfm.md`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from contextdesc.benchmarks import ratio, sfm
from contextdesc.benchmarks.methods import build_methods
from contextdesc.benchmarks.ratio_views import scene_views
from contextdesc.formats.atomic import replacing
from contextdesc.modelfile import DEFAULT, read_spec, resolve

ROOT = Path(__file__).parent.parent
METHODS = "rootsift,sift-context,contextdesc"
BEGIN, END = "<!-- numbers: scripts/sfm_numbers.py -->", "<!-- end of numbers -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with eval/strecha and train/scenes")
    data = parser.parse_args().data
    begun = time.monotonic()
    check_ratio(data / "train" / "scenes")
    target = ROOT / "docs" / "results" / "sfm-strecha.json"
    command = ["benchmark", "sfm", "--data", str(data / "eval" / "strecha"), "--methods", METHODS]
    subprocess.run([sys.executable, "-m", "contextdesc", *command, "-o", str(target)], check=True)
    table = sfm.table(json.loads(target.read_text(encoding="utf-8"))["scenes"]).markdown
    document = ROOT / "docs" / "sfm.md"
    before, _, rest = document.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    with replacing(document) as temporary:
        temporary.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")
    print(f"{time.monotonic() - begun:.0f} s")


def check_ratio(scenes: Path) -> None:
    """Stop if RootSIFT's ratio is not the one at the precision of SIFT's 0.80."""
    held_out = read_spec(resolve(DEFAULT))[0].training["held_out_scenes"]
    methods = build_methods("sift,rootsift")
    found = ratio.candidates(scene_views([scenes / name for name in held_out]), methods)
    measured = ratio.equal_precision(found["sift"], found["rootsift"])
    if measured != methods["rootsift"].ratio:
        raise SystemExit(f"RootSIFT's ratio is {measured} here, not {methods['rootsift'].ratio}")


if __name__ == "__main__":
    main()
