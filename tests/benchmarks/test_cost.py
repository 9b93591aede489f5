"""What networks cost: operations and parameters by hand, stages that add up, and times with their spread."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from contextdesc.benchmarks import cost
from contextdesc.benchmarks.cost import stages_of, summarise
from contextdesc.benchmarks.graph_cost import GraphCost, graph_cost
from contextdesc.benchmarks.methods import build_method, build_methods
from contextdesc.benchmarks.model_stages import Stage
from contextdesc.benchmarks.protocol import Request
from contextdesc.benchmarks.timing import Spread, Workload, cropped
from contextdesc.detection import Detector, detect
from contextdesc.errors import InputError
from contextdesc.image import Image
from contextdesc.model import load
from contextdesc.modelfile import LOCAL, PACKAGED


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A convolution of 3 to 4 channels, 3 x 3, stride 2, padded; the mean of each channel; two products."""

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(np.ones(shape, np.float32), name)

    nodes = [
        helper.make_node("Conv", ["image", "kernel", "bias"], ["map"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["map"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "matrix"], ["product"], transB=1),
        helper.make_node("MatMul", ["product", "last"], ["answer"]),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, "height", "width"])
    answer = helper.make_tensor_value_info("answer", TensorProto.FLOAT, ["n", 2])
    initialisers = [
        weights("kernel", 4, 3, 3, 3), weights("bias", 4), weights("matrix", 5, 4), weights("last", 5, 2),
        numpy_helper.from_array(np.array([7, 7], np.int64), "no weights"),
    ]  # fmt: skip
    graph = helper.make_graph(nodes, "small", [image], [answer], initialisers)
    path = tmp_path / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def test_operations_and_parameters_by_hand(network: Path) -> None:
    """On 8 x 6 pixels the map is 4 x 3: 12 places x 4 channels x 27 products = 1296; then 4 x 5 and 5 x 2.

    Parameters: 4 x 27 + 4, 5 x 4, 5 x 2. Moved: 144 + 108 + 48, 4 + 20 + 5, 5 + 10 + 2 numbers of 4 bytes.
    """
    found = graph_cost(network, image=(1, 3, 8, 6), unread=(1, 2))
    assert found == GraphCost(2 * (1296 + 20 + 10), 108 + 4 + 20 + 10, 4 * (300 + 29 + 17))
    assert graph_cost(network, image=(5, 3, 8, 6)).flops == 5 * found.flops


def test_the_local_network_costs_what_the_paper_says() -> None:
    """802.9 billion operations for 10,000 keypoints and 2.4 million parameters (table of cost)."""
    found = graph_cost(PACKAGED / "contextdesc" / LOCAL, patches=(10_000, 32, 32))
    assert found.flops / 1e9 == pytest.approx(802.9, abs=0.1)
    assert found.parameters / 1e6 == pytest.approx(2.39, abs=0.01)


def test_ratios_are_of_the_same_round() -> None:
    """Three rounds, of which the machine was twice as slow in the second: the ratio is 3 in each. The context
    takes 2 of 4 milliseconds of description; the term alone is no part of the total of 6."""

    def stage(name: str, summed: bool = True) -> Stage:
        return Stage(name, lambda: None, GraphCost(10, 1, 4) if name != "descriptor" else None, summed)

    names = ("local network", "visual context", "both contexts")
    stages = {
        "sift": [stage("descriptor")],
        "model": [stage(name, summed=name != "visual context") for name in names],
    }
    slow = (1, 2, 1)
    times = {
        "sift": [{"descriptor": (2.0 * s, 5.0)} for s in slow],
        "model": [
            {
                "local network": (4.0 * s, 9.0),
                "visual context": (1.5 * s, 9.0),
                "both contexts": (2.0 * s, 9.0),
            }
            for s in slow
        ],
    }
    found = summarise(stages, times, "sift")
    assert found["model"]["ratios"]["total over baseline"] == {"median": 3, "least": 3, "most": 3}
    assert found["model"]["ratios"]["context over description"]["median"] == 0.5
    assert found["model"]["total"]["cpu_ms"] == {"median": 6, "least": 6, "most": 12}
    assert found["model"]["total"]["wall_ms"]["median"] == 18
    assert found["model"]["total"]["flops"] == 20
    assert found["model"]["stages"]["visual context"]["cpu_ms"]["median"] == 1.5
    assert "flops" not in found["sift"]["stages"]["descriptor"]
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2, 1, 3)


@pytest.mark.parametrize(
    ("name", "base"),
    [("contextdesc", ["patches", "local network"]), ("sift-context", ["RootSIFT", "matchability"])],
)
def test_stages_end_in_the_descriptor_of_the_model(name: str, base: list[str], photo: Image) -> None:
    """What the last stage computes is what the model says of these keypoints."""
    detector = Detector(40)
    keypoints = detect(photo.gray, detector)
    stages = stages_of(build_method(name, 1), photo, keypoints, detector, 1)
    terms = ["geometric context", "visual context"]
    assert [stage.name for stage in stages] == ["detect", *base, "regional network", *terms, "both contexts"]
    expected = load(name, threads=1).describe(photo, keypoints).descriptors
    np.testing.assert_allclose(stages[-1].run(), expected, atol=1e-5)
    alone = [stage for stage in stages if stage.name in terms]
    assert [stage.summed for stage in alone] == [False, False]
    assert stages[-1].cost.parameters == sum(stage.cost.parameters for stage in alone)
    assert [s.name for s in stages_of(build_method(f"{name}:none", 1), photo, keypoints, detector, 1)] == [
        "detect", *base,
    ]  # fmt: skip


def test_a_run_on_a_photograph(photo: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cv2.imwrite(str(tmp_path / "photo.png"), photo.rgb)
    monkeypatch.setattr(cost, "WORKLOADS", (Workload((120, 160), 3000),))
    request = Request(tmp_path, build_methods("sift,rootsift"), settings={"repetitions": 2})
    report = cost.run(request)
    numbers = report.numbers["workloads"]["3,000 keypoints, 120 x 160"]
    assert 20 < numbers["detected"] < 3000
    assert numbers["methods"]["rootsift"]["total"]["cpu_ms"]["least"] > 0
    assert numbers["methods"]["sift"]["ratios"]["total over baseline"]["median"] == 1
    assert report.numbers["machine"]["cores"] >= 1
    assert "total over sift" in report.markdown
    with pytest.raises(InputError, match="repetitions=0: at least 1"):
        cost.run(Request(tmp_path, request.methods, settings={"repetitions": 0}))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no images here"):
        cost.run(Request(tmp_path / "empty", request.methods))


def test_the_middle_of_a_photograph_has_the_asked_shape() -> None:
    rgb = np.zeros((100, 300, 3), np.uint8)
    rgb[:, 100:200] = 255  # the middle third is white
    square = cropped(Image(rgb, (300, 100), "made"), (50, 50))
    assert square.size == (50, 50)
    assert square.gray.min() == 255
