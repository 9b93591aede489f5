"""Write a model's card: `python scripts/model_card.py NAME`, from what the repository has of it.

Reads `configs/NAME/card.json` (what a person knows: commands, times, weaknesses), `configs/data.json` (the
data and its terms), `docs/models/NAME/*.jsonl` (logs of the stages), `docs/results/heinly-NAME.json` and
`terms-NAME.json` (printed by `contextdesc benchmark`), and the packaged model itself. Writes
`docs/models/NAME.md` and the curves beside the logs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from contextdesc import modelfile
from contextdesc.training.logs import draw_curves, read_log

ROOT = Path(__file__).parent.parent


def main(name: str) -> None:
    folder = modelfile.resolve(name)
    spec, checksum = modelfile.read_spec(folder)
    card = json.loads((ROOT / "configs" / name / "card.json").read_text(encoding="utf-8"))
    data = json.loads((ROOT / "configs" / "data.json").read_text(encoding="utf-8"))["data"]
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    facts = [
        ("base", "local network on 32x32 patches" if spec.base == "local" else "RootSIFT"),
        ("context", " + ".join(spec.terms) or "none"),
        ("regional network", f"{spec.regional}, longer side at most {spec.regional_max_side} pixels"),
        ("files", f"{', '.join(f'`{f}`' for f in spec.files)}: {size:.1f} MB, weights in half precision"),
        ("patch support", f"{spec.support} times the keypoint's size"),
        ("ratio threshold", f"{spec.ratio}: its precision on held-out scenes equals SIFT's at 0.80"),
        ("checksum", f"`{checksum[:16]}`"),
        ("licence", "Apache-2.0"),
    ]
    parts = [
        f"# {name}",
        card["summary"],
        _table(["", ""], facts),
        "## Data",
        _table(["source", "terms", "use"], [(d["source"], d["terms"], d["use"]) for d in data]),
        f"Held out from all training: the last {spec.training['held_out']} photographs and the scenes "
        f"{', '.join(spec.training['held_out_scenes'])}. {card['starts']}",
        "## Training",
        "```sh\n" + "\n".join(card["commands"]) + "\n```",
        f"Seeds are in the configs. {card['hardware']} {card.get('schedule', '')}".strip(),
        *_stages(name, card["stages"]),
        "## Evaluation",
        *_heinly(name),
        *_terms(name),
        "## Known weaknesses",
        "\n".join(f"- {weakness}" for weakness in card["weaknesses"]),
    ]
    (ROOT / "docs" / "models" / f"{name}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _stages(name: str, stages: list[dict[str, str]]) -> list[str]:
    """Each stage: what it was, its steps and time, held-out recall along the way, its curves."""
    parts = []
    for stage in stages:
        log = ROOT / "docs" / "models" / stage["log"]
        lines = read_log(log)
        draw_curves(log, log.with_suffix(".png"))
        validated = [line for line in lines if "held_out_recall" in line]
        keys = list(validated[0]["held_out_recall"])
        rows = [(str(v["step"]), *(f"{v['held_out_recall'][key]:.2f}" for key in keys)) for v in validated]
        parts += [
            f"**{stage['title']}**, commit {stage['commit']}: {lines[-1]['step']} steps. {stage['text']}",
            _table(["step", *keys], rows),
            f"![curves]({log.with_suffix('.png').relative_to(ROOT / 'docs' / 'models')})",
        ]
    return parts


def _heinly(name: str) -> list[str]:
    file = ROOT / "docs" / "results" / f"heinly-{name}.json"
    recall = json.loads(file.read_text(encoding="utf-8"))["recall"]
    columns = list(next(iter(recall.values())))
    rows = [(method, *(f"{row[column]:.1f}" for column in columns)) for method, row in recall.items()]
    return [
        "Recall on the Oxford affine scenes (2048 random SIFT keypoints at contrast 0.04 without precise "
        "upscaling, one-way nearest neighbour, 2.5 pixels, mean of seeds 0 to 4), reported once, never "
        "used for a choice:",
        _table(["recall", *columns], rows),
        f"Numbers: [{file.name}](../results/{file.name}), by\n\n```sh\ncontextdesc benchmark heinly --data "
        f"oxford-affine --methods {','.join(recall)}\n```",
    ]


def _terms(name: str) -> list[str]:
    file = ROOT / "docs" / "results" / f"terms-{name}.json"
    sets = json.loads(file.read_text(encoding="utf-8"))["models"][name]
    rows: list[tuple[str, ...]] = []
    for kind, numbers in sets.items():
        where = f"{numbers['pairs']} pairs of {kind}"
        rows += [
            (where, f"recall, {terms}", f"{value:.2f}", "") for terms, value in numbers["recall"].items()
        ]
        rows += [
            (where, what, f"{gain['mean']:+.2f}", f"{gain['low']:+.2f} to {gain['high']:+.2f}")
            for what, gain in numbers["gain"].items()
        ]
    return [
        "What each context term adds on held-out photographs and scenes, with the 95 % interval of a paired "
        "bootstrap over image pairs:",
        _table(["pairs", "what", "mean", "95 % interval"], rows),
        f"Numbers: [{file.name}](../results/{file.name}), by `contextdesc benchmark terms --data DIR "
        f"--methods {name}`, where DIR has `photos/` and `scenes/`.",
    ]


def _table(head: list[str], rows: list[Any]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join(lines + [f"| {' | '.join(map(str, row))} |" for row in rows])


if __name__ == "__main__":
    main(sys.argv[1])
