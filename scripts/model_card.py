"""Write a model's card: `python scripts/model_card.py NAME`, from what the repository has of it.

Reads `configs/NAME/card.json` (what a person knows: commands, times, weaknesses), `configs/data.json` (the
data and its terms), `docs/models/NAME/*.jsonl` (logs of the stages), `docs/results/heinly-NAME.json` and
`terms-NAME.json` (printed by `contextdesc benchmark`), and the packaged model itself. Writes
`docs/models/NAME.md`, the curves beside the logs, and the recall that `contextdesc models` prints.
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
    size = sum((folder / file).stat().st_size for file in ("model.json", *spec.files)) / 1e6
    facts = [
        ("base", "local network on 32x32 patches" if spec.base == "local" else "RootSIFT"),
        ("context", " + ".join(spec.terms) or "none"),
        ("regional network", _regional(spec)),
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
        f"{card['hardware']} {card.get('schedule', '')}".strip(),
        *_stages(card["stages"], card["seed"]),
        card["regional"],
        "## Evaluation",
        *_heinly(name),
        *_other_scenes(name),
        *_terms(name),
        *_int8(folder, spec, checksum),
        "## Known weaknesses",
        "\n".join(f"- {weakness}" for weakness in card["weaknesses"]),
    ]
    (ROOT / "docs" / "models" / f"{name}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    _tell_recall(name)


def _regional(spec: modelfile.ModelSpec) -> str:
    """The regional network and what it sees."""
    shape = spec.networks.get("regional", {})
    told = [spec.regional]
    if "levels" in shape:
        told.append(f"features of stride {', '.join(map(str, shape['levels']))}")
    if shape.get("octaves", 1) > 1:
        told.append(f"of {shape['octaves']} sizes of the image, each half the one before")
    return ", ".join([*told, f"longer side at most {spec.regional_max_side} pixels"])


def _tell_recall(name: str) -> None:
    """Recall of the model and of RootSIFT on Oxford's scenes; the model's own file is older than it."""
    file = ROOT / "docs" / "results" / f"heinly-{name}.json"
    recall = json.loads(file.read_text(encoding="utf-8"))["recall"]
    told = json.loads(modelfile.RECALLS.read_text(encoding="utf-8"))
    told |= {method: round(recall[method]["mean"], 1) for method in (name, "rootsift")}
    modelfile.RECALLS.write_text(json.dumps(told, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _stages(stages: list[dict[str, str]], seeds: dict[str, int]) -> list[str]:
    """Each stage: what it was, its steps, time and seed, held-out recall along the way, its curves."""
    parts = []
    for stage in stages:
        log = ROOT / "docs" / "models" / stage["log"]
        lines = read_log(log)
        draw_curves(log, log.with_suffix(".png"))
        validated = [line for line in lines if "held_out_recall" in line]
        keys = list(validated[0]["held_out_recall"])
        rows = [(str(v["step"]), *(f"{v['held_out_recall'][key]:.2f}" for key in keys)) for v in validated]
        parts += [
            f"**{stage['title']}** (`{log.stem}`): {lines[-1]['step']} steps, {_minutes(lines):.0f} minutes, "
            f"seed {seeds[log.stem]}, commit {stage['commit']}. {stage['text']}",
            _table(["step", *keys], rows),
            f"![curves]({log.with_suffix('.png').relative_to(ROOT / 'docs' / 'models')})",
        ]
    return parts


def _minutes(lines: list[dict[str, Any]]) -> float:
    """Time of a log's steps."""
    seconds, before = 0.0, 0
    for line in lines:
        if "steps_per_second" in line:
            seconds += (line["step"] - before) / line["steps_per_second"]
            before = line["step"]
    return seconds / 60


def _heinly(name: str) -> list[str]:
    file = ROOT / "docs" / "results" / f"heinly-{name}.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    recall, baseline = found["recall"], found["baseline"]
    scenes = [scene for scene in recall[name] if scene != "mean"]
    rows = []
    for method, of in recall.items():
        mean = _interval(found["intervals"][method]["mean"], ".1f")
        less = "" if method == baseline else _interval(found["difference"][method]["mean"], "+.1f")
        rows.append((method, *(f"{of[scene]:.1f}" for scene in scenes), mean, less))
    return [
        "Recall on the Oxford affine scenes (2048 random SIFT keypoints at contrast 0.04 without precise "
        "upscaling, one-way nearest neighbour, 2.5 pixels, mean of seeds 0 to 4), reported once, never "
        "used for a choice; 95 % intervals are over scenes:",
        _table(["recall", *scenes, "mean", f"mean less {baseline}'s"], rows),
        f"Numbers: [{file.name}](../results/{file.name}), by\n\n```sh\ncontextdesc benchmark heinly --data "
        f"oxford-affine --methods {','.join(recall)} --baseline {baseline}\n```",
    ]


def _other_scenes(name: str) -> list[str]:
    """Terms on and off on the other evaluation scenes: recall on HPatches' sequences, pose of Strecha's."""
    files = [ROOT / "docs" / "results" / f"{what}-{name}.json" for what in ("hsequences", "pairs")]
    sequences, pairs = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    methods = list(sequences["sequences"])
    columns = [*sequences["sequences"][name], *pairs["scenes"]]
    rows = []
    for method in methods:
        recalls = [f"{of['recall']:.1f}" for of in sequences["sequences"][method].values()]
        poses = [_interval(of[method]["ratio"]["AUC 5°"], ".1f") for of in pairs["scenes"].values()]
        rows.append((method, *recalls, *poses))
    chosen = ",".join(methods)
    return [
        "Recall on two sequences of HPatches, and relative pose of Strecha's image pairs with the model's "
        "ratio test (area under the curve up to 5 degrees; 95 % intervals over pairs), likewise reported "
        "once:",
        _table(["", *columns], rows),
        "Numbers: " + " and ".join(f"[{file.name}](../results/{file.name})" for file in files) + ", by\n\n"
        f"```sh\ncontextdesc benchmark hsequences --data hpatches-sequences --methods {chosen}\n"
        f"contextdesc benchmark pairs --data strecha --methods {chosen}\n```",
    ]


def _terms(name: str) -> list[str]:
    file = ROOT / "docs" / "results" / f"terms-{name}.json"
    measured = json.loads(file.read_text(encoding="utf-8"))
    command = measured["origin"]["command"].replace("--data train", "--data DIR")
    rows: list[tuple[str, ...]] = []
    for kind, numbers in measured["models"][name].items():
        where = f"{numbers['pairs']} pairs of {kind}"
        rows += [
            (where, f"recall, {terms}", _interval(recall, ".2f"))
            for terms, recall in numbers["intervals"].items()
        ]
        rows += [(where, what, _interval(gain, "+.2f")) for what, gain in numbers["gain"].items()]
    return [
        "What each context term adds on held-out photographs and scenes, with the 95 % interval of a paired "
        "bootstrap over image pairs. Settings were chosen on other draws of the same photographs and scenes, "
        "so these gains are a little kind:",
        _table(["pairs", "what", "mean (95 % interval)"], rows),
        f"Numbers: [{file.name}](../results/{file.name}), by `{command}`, where DIR has `photos/` and "
        "`scenes/`.",
    ]


def _int8(folder: Path, spec: modelfile.ModelSpec, checksum: str) -> list[str]:
    """What `--precision int8` costs and gains, for a model that has it."""
    if not (folder / modelfile.INT8).is_file():
        return []
    found = modelfile.read_int8(folder, spec, checksum)
    recall = []
    for kind, of in found.recall.items():
        lost = {key: f"{value:+.2f}" for key, value in of["difference"].items()}
        numbers = (f"{of['fp32']:.2f}", f"{of['int8']:.2f}", lost["mean"], f"{lost['low']} to {lost['high']}")
        recall.append((f"{of['pairs']} pairs of {kind}", *numbers))
    timed = {name: of["speed"] for name, of in found.networks.items() if of["used"]}
    speeds = [(what, *_faster(of)) for what, of in {**timed, "description": found.speed}.items()]
    size = sum((folder / file).stat().st_size for file in found.files) / 1e6
    width, height = found.speed["image"]
    stays = [
        f"`{name}` is not among them: {of['why']}." for name, of in found.networks.items() if not of["used"]
    ]
    told = found.calibration
    return [
        "## int8",
        f"`--precision int8` runs {', '.join(f'`{file}`' for file in found.files)} ({size:.1f} MB), with the "
        f"ranges of {told['patches']} patches of {told['photographs']} training photographs."
        + "".join(f" {sentence}" for sentence in stays),
        _table(["held-out recall, all context", "fp32", "int8", "difference", "95 % interval"], recall),
        _table(["times as fast as fp32, median (least to most)", *_threads(found.speed)], speeds),
        f"The description is that of {found.speed['keypoints']} keypoints of an image of {width} x {height}, "
        f"on {found.speed['machine']['cpu']} ({found.speed['machine']['cores']} cores), in "
        f"{found.speed['rounds']} interleaved rounds. Measured and written by `{told['command']}`.",
    ]


def _interval(of: dict[str, float], form: str) -> str:
    return f"{of['mean']:{form}} ({of['low']:{form}} to {of['high']:{form}})"


def _threads(speed: dict[str, Any]) -> list[str]:
    return [f"{count} thread{'s' * (count != '1')}" for count in speed["threads"]]


def _faster(speed: dict[str, Any]) -> list[str]:
    ratios = [of["ratio"] for of in speed["threads"].values()]
    return [f"{r['median']:.2f} ({r['least']:.2f} to {r['most']:.2f})" for r in ratios]


def _table(head: list[str], rows: list[Any]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join(lines + [f"| {' | '.join(map(str, row))} |" for row in rows])


if __name__ == "__main__":
    main(sys.argv[1])
